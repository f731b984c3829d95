// A gRPC client with one bidirectional stream, FullDuplexCall of the interoperability tests: it executes the
// command in each line of its input, and prints a line with the result.

import { ResponseStream, connect, runCommands } from './http2_session.mjs';

let call;

async function open(address) {
  const { origin, pathname } = new URL(address);
  const session = await connect(origin);
  const stream = session.request({
    ':method': 'POST',
    ':path': pathname,
    'content-type': 'application/grpc',
    te: 'trailers',
  });
  // The server sends the head of its response with the first message.
  const response = new ResponseStream(stream);
  sendRequest(stream, 1);
  const status = await response.status();
  if (status !== 200) return `refused ${status}`;
  call = response;
  return (await receive()) === 1 ? 'open' : 'something else';
}

/** Sends a StreamingOutputCallRequest for one response of `size` bytes. */
function sendRequest(stream, size) {
  const varint = [];
  let rest = size;
  while (rest > 127) {
    varint.push((rest & 127) | 128);
    rest >>= 7;
  }
  const message = Buffer.from([0x12, varint.length + 2, 0x08, ...varint, rest]);
  stream.write(Buffer.concat([Buffer.from([0, 0, 0, 0, message.length]), message]));
}

/** Returns the next message's length, without the few bytes around its body of zeros. */
async function receive() {
  const length = (await call.bytes(5)).readUInt32BE(1);
  const message = await call.bytes(length);
  const zeros = message.length - 1 - message.findLastIndex((byte) => byte !== 0);
  return zeros;
}

async function execute(command, rest) {
  switch (command) {
    case 'open':
      return open(rest);
    case 'echo': {
      sendRequest(call.stream, Number(rest));
      const length = await receive();
      return length === Number(rest) ? `echoed ${rest}` : `${length} instead`;
    }
    case 'ended':
      return call.end();
    default:
      return `unknown ${command}`;
  }
}

await runCommands(execute);
