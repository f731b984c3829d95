// A WebSocket client with the package `ws` that executes the command in each line of its input, and prints a
// line with the result.

const { randomBytes } = require('node:crypto');
const { once } = require('node:events');
const { createInterface } = require('node:readline');
const WebSocket = require('ws');

let socket;

function open(address) {
  return new Promise((resolve) => {
    socket = new WebSocket(address);
    socket.once('open', () => resolve('open'));
    socket.once('unexpected-response', (_, response) => resolve(`refused ${response.statusCode}`));
    socket.on('error', (error) => resolve(`failed ${error.message}`));
  });
}

async function waitForClose() {
  const [code, reason] = await once(socket, 'close');
  return `closed ${code} ${reason}`;
}

async function execute(command, rest) {
  const [code, ...reason] = rest.split(' ');
  switch (command) {
    case 'open':
      return open(rest);
    case 'echo': {
      const message = randomBytes(Number(rest));
      socket.send(message);
      const [received] = await once(socket, 'message');
      return message.equals(received) ? `echoed ${rest}` : 'something else came back';
    }
    case 'text':
      socket.send(rest);
      return String((await once(socket, 'message'))[0]);
    case 'ping':
      socket.ping(rest);
      return String((await once(socket, 'pong'))[0]) === rest ? 'pong' : 'something else';
    case 'close':
      socket.close(Number(code), reason.join(' '));
      return waitForClose();
    case 'be-closed':
      socket.send(`close ${rest}`);
      return waitForClose();
    default:
      return `unknown ${command}`;
  }
}

(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...rest] = line.split(' ');
    const result = await execute(command, rest.join(' ')).catch((error) => `failed ${error.message}`);
    process.stdout.write(`${result}\n`);
  }
})();
