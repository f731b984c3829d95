// A client of gRPC with one stream both ways, FullDuplexCall of its interoperability tests: it does what
// each line of its input says, and answers with a line.

import { Heard, answerLines, connect } from './conversation.mjs';

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
  // The server begins its answer with the first message.
  const heard = new Heard(stream);
  ask(stream, 1);
  const status = await heard.status();
  if (status !== 200) return `refused ${status}`;
  call = heard;
  return (await receive()) === 1 ? 'open' : 'something else';
}

/** Sends a StreamingOutputCallRequest for one answer of so many bytes. */
function ask(stream, size) {
  const number = [];
  let rest = size;
  while (rest > 127) {
    number.push((rest & 127) | 128);
    rest >>= 7;
  }
  const message = Buffer.from([0x12, number.length + 2, 0x08, ...number, rest]);
  stream.write(Buffer.concat([Buffer.from([0, 0, 0, 0, message.length]), message]));
}

/** The next message's length, without the few bytes around its body of zeros. */
async function receive() {
  const length = (await call.bytes(5)).readUInt32BE(1);
  const message = await call.bytes(length);
  const zeros = message.length - 1 - message.findLastIndex((byte) => byte !== 0);
  return zeros;
}

async function obey(name, rest) {
  switch (name) {
    case 'open':
      return open(rest);
    case 'echo': {
      ask(call.stream, Number(rest));
      const length = await receive();
      return length === Number(rest) ? `echoed ${rest}` : `${length} instead`;
    }
    case 'ended':
      return call.end();
    default:
      return `unknown ${name}`;
  }
}

await answerLines(obey);
