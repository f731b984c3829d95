// A WebSocket client over HTTP/2 (RFC 8441) that does what each line of its input says, and answers
// with a line. Each socket is a stream; sockets to one address share a connection.

import { createInterface } from 'node:readline';
import { randomBytes } from 'node:crypto';
import http2 from 'node:http2';

const CLOSE = 8;
const sessions = new Map();
let socket;

async function connect(origin) {
  if (!sessions.has(origin)) {
    const session = http2.connect(origin);
    session.on('error', () => sessions.delete(origin));
    await new Promise((resolve, reject) => {
      session.once('remoteSettings', resolve);
      session.once('error', reject);
    });
    sessions.set(origin, session);
  }
  return sessions.get(origin);
}

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
  const status = await new Promise((resolve, reject) => {
    stream.once('response', (head) => resolve(head[':status']));
    stream.once('error', reject);
  });
  if (status !== 200) return `refused ${status}`;
  socket = { stream, heard: Buffer.alloc(0), wake: () => {}, ended: false };
  const mine = socket;
  stream.on('data', (piece) => { mine.heard = Buffer.concat([mine.heard, piece]); mine.wake(); });
  stream.on('end', () => { mine.ended = true; mine.wake(); });
  return 'open';
}

/** One whole message, masked as clients must (RFC 6455 §5.2). */
function send(kind, payload) {
  const { length } = payload;
  const head = length < 126 ? Buffer.from([0x80 | kind, 0x80 | length])
    : length < 65536 ? Buffer.from([0x80 | kind, 0x80 | 126, length >> 8, length & 255])
      : Buffer.concat([Buffer.from([0x80 | kind, 0x80 | 127, 0, 0, 0, 0]), word(length)]);
  const mask = randomBytes(4);
  const masked = Buffer.from(payload.map((byte, at) => byte ^ mask[at % 4]));
  socket.stream.write(Buffer.concat([head, mask, masked]));
}

function word(number) {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(number);
  return bytes;
}

async function bytes(count) {
  while (socket.heard.length < count) {
    if (socket.ended) throw new Error('the stream ended');
    await new Promise((resolve) => { socket.wake = resolve; });
  }
  const taken = socket.heard.subarray(0, count);
  socket.heard = socket.heard.subarray(count);
  return taken;
}

async function receive() {
  const [first, second] = await bytes(2);
  const length = second === 126 ? (await bytes(2)).readUInt16BE()
    : second === 127 ? Number((await bytes(8)).readBigUInt64BE()) : second;
  return { kind: first & 15, payload: await bytes(length) };
}

async function obey(name, rest) {
  switch (name) {
    case 'open':
      return open(rest);
    case 'echo': {
      const message = randomBytes(Number(rest));
      send(2, message);
      return (await receive()).payload.equals(message) ? `echoed ${rest}` : 'something else';
    }
    case 'text':
      send(1, Buffer.from(rest));
      return (await receive()).payload.toString();
    case 'close': {
      const [code, ...reason] = rest.split(' ');
      const two = Buffer.from([Number(code) >> 8, Number(code) & 255]);
      send(CLOSE, Buffer.concat([two, Buffer.from(reason.join(' '))]));
      const { kind, payload } = await receive();
      socket.stream.end();
      return `${kind === CLOSE ? 'closed' : 'odd'} ${payload.readUInt16BE()} ${payload.subarray(2)}`;
    }
    default:
      return `unknown ${name}`;
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const [name, ...rest] = line.split(' ');
  const answer = await obey(name, rest.join(' ')).catch((error) => `failed ${error.message}`);
  process.stdout.write(`${answer}\n`);
}
