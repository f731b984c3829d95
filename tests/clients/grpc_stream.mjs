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
  const status = await response.receiveStatus();
  if (status !== 200) return `refused ${status}`;
  call = response;
  return (await receive()) === 1 ? 'open' : 'unexpected';
}

/** Sends a StreamingOutputCallRequest for one response of `size` bytes. */
function sendRequest(stream, size) {
  const varint = [];
  let remaining = size;
  while (remaining > 127) {
    varint.push((remaining & 127) | 128);
    remaining >>= 7;
  }
  const message = Buffer.from([0x12, varint.length + 2, 0x08, ...varint, remaining]);
  stream.write(Buffer.concat([Buffer.from([0, 0, 0, 0, message.length]), message]));
}

/** Returns the next message's length, without the few bytes around its body of zeros. */
async function receive() {
  const length = (await call.readBytes(5)).readUInt32BE(1);
  const message = await call.readBytes(length);
  const zeros = message.length - 1 - message.findLastIndex((byte) => byte !== 0);
  return zeros;
}

async function execute(command, argument) {
  switch (command) {
    case 'open':
      return open(argument);
    case 'echo': {
      sendRequest(call.stream, Number(argument));
      const length = await receive();
      return length === Number(argument) ? `echoed ${argument}` : `${length} instead`;
    }
    case 'ended':
      return call.waitForEnd();
    default:
      return `unknown ${command}`;
  }
}

await runCommands(execute);
