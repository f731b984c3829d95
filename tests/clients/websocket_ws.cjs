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

async function execute(command, argument) {
  const [code, ...reason] = argument.split(' ');
  switch (command) {
    case 'open':
      return open(argument);
    case 'echo': {
      const message = randomBytes(Number(argument));
      socket.send(message);
      const [received] = await once(socket, 'message');
      return message.equals(received) ? `echoed ${argument}` : 'the messages differ';
    }
    case 'text':
      socket.send(argument);
      return String((await once(socket, 'message'))[0]);
    case 'ping':
      socket.ping(argument);
      return String((await once(socket, 'pong'))[0]) === argument ? 'pong' : 'unexpected';
    case 'close':
      socket.close(Number(code), reason.join(' '));
      return waitForClose();
    case 'be-closed':
      socket.send(`close ${argument}`);
      return waitForClose();
    default:
      return `unknown ${command}`;
  }
}

(async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...words] = line.split(' ');
    const result = await execute(command, words.join(' ')).catch((error) => `failed ${error.message}`);
    process.stdout.write(`${result}\n`);
  }
})();
