// A WebSocket client over HTTP/2 (RFC 8441) that executes the command in each line of its input, and
// prints a line with the result. Each socket is a stream; sockets to one address share a connection.

import { randomBytes } from 'node:crypto';

import { ResponseStream, connect, runCommands } from './http2_session.mjs';

const CLOSE = 8;
let socket;

async function open(address) {
  const { origin, pathname } = new URL(address);
  const session = await connect(origin);
  if (!session.remoteSettings.enableConnectProtocol) return 'not offered';
  const stream = session.request({
    ':method': 'CONNECT',
    ':protocol': 'websocket',
    ':path': pathname,
    'sec-websocket-version': '13',
  });
  const response = new ResponseStream(stream);
  const status = await response.receiveStatus();
  if (status !== 200) return `refused ${status}`;
  socket = response;
  return 'open';
}

/** Sends one complete message, masked as clients must (RFC 6455 §5.2). */
function send(kind, payload) {
  const { length } = payload;
  const head = length < 126 ? Buffer.from([0x80 | kind, 0x80 | length])
    : length < 65536 ? Buffer.from([0x80 | kind, 0x80 | 126, length >> 8, length & 255])
      : Buffer.concat([Buffer.from([0x80 | kind, 0x80 | 127, 0, 0, 0, 0]), uint32(length)]);
  const mask = randomBytes(4);
  const masked = Buffer.from(payload.map((byte, index) => byte ^ mask[index % 4]));
  socket.stream.write(Buffer.concat([head, mask, masked]));
}

function uint32(number) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(number);
  return bytes;
}

async function receive() {
  const [first, second] = await socket.readBytes(2);
  const length = second === 126 ? (await socket.readBytes(2)).readUInt16BE()
    : second === 127 ? Number((await socket.readBytes(8)).readBigUInt64BE()) : second;
  return { kind: first & 15, payload: await socket.readBytes(length) };
}

async function execute(command, argument) {
  switch (command) {
    case 'open':
      return open(argument);
    case 'echo': {
      const message = randomBytes(Number(argument));
      send(2, message);
      return (await receive()).payload.equals(message) ? `echoed ${argument}` : 'unexpected';
    }
    case 'text':
      send(1, Buffer.from(argument));
      return (await receive()).payload.toString();
    case 'close': {
      const [code, ...reason] = argument.split(' ');
      const closeCode = Buffer.from([Number(code) >> 8, Number(code) & 255]);
      send(CLOSE, Buffer.concat([closeCode, Buffer.from(reason.join(' '))]));
      const { kind, payload } = await receive();
      socket.stream.end();
      return `${kind === CLOSE ? 'closed' : 'odd'} ${payload.readUInt16BE()} ${payload.subarray(2)}`;
    }
    case 'ended':
      return socket.waitForEnd();
    default:
      return `unknown ${command}`;
  }
}

await runCommands(execute);
