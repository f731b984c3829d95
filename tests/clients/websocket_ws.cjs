// A WebSocket client with the package `ws` that does what each line of its input says, and answers with a
// line.

const { randomBytes } = require('node:crypto');
const { once } = require('node:events');
const { createInterface } = require('node:readline');
const WebSocket = require('ws');

let socket;

function open(address) {
  return new Promise((resolve) => {
    socket = new WebSocket(address);
    socket.once('open', () => resolve('open'));
    socket.once('unexpected-response', (_, answer) => resolve(`refused ${answer.statusCode}`));
    socket.on('error', (error) => resolve(`failed ${error.message}`));
  });
}

async function closed() {
  const [code, reason] = await once(socket, 'close');
  return `closed ${code} ${reason}`;
}

async function obey(word, rest) {
  const [code, ...reason] = rest.split(' ');
  switch (word) {
    case 'open':
      return open(rest);
    case 'echo': {
      const message = randomBytes(Number(rest));
      socket.send(message);
      const [heard] = await once(socket, 'message');
      return message.equals(heard) ? `echoed ${rest}` : 'something else came back';
    }
    case 'text':
      socket.send(rest);
      return String((await once(socket, 'message'))[0]);
    case 'ping':
      socket.ping(rest);
      return String((await once(socket, 'pong'))[0]) === rest ? 'pong' : 'something else';
    case 'close':
      socket.close(Number(code), reason.join(' '));
      return closed();
    case 'be-closed':
      socket.send(`close ${rest}`);
      return closed();
    default:
      return `unknown ${word}`;
  }
}

(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [word, ...rest] = line.split(' ');
    const answer = await obey(word, rest.join(' ')).catch((error) => `failed ${error.message}`);
    process.stdout.write(`${answer}\n`);
  }
})();
