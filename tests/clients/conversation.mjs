// What clients over HTTP/2 share that do what each line of their input says, and answer with a line.

import { createInterface } from 'node:readline';
import http2 from 'node:http2';

const sessions = new Map();

/** The connection to an address, opened once its peer's settings have come. */
export async function connect(origin) {
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

/** A stream whose answer has begun, and what was heard on it and not yet taken. */
export class Heard {
  constructor(stream) {
    this.stream = stream;
    this.unread = Buffer.alloc(0);
    this.isOver = false;
    this.wake = () => {};
    stream.on('data', (piece) => { this.unread = Buffer.concat([this.unread, piece]); this.wake(); });
    for (const end of ['end', 'close']) {
      stream.on(end, () => { this.isOver = true; this.wake(); });
    }
  }

  /** The status of the answer. */
  status() {
    return new Promise((resolve, reject) => {
      this.stream.once('response', (head) => resolve(head[':status']));
      this.stream.once('error', reject);
    });
  }

  /** The next so many bytes. */
  async bytes(count) {
    while (this.unread.length < count) {
      if (this.isOver) throw new Error('the stream ended');
      await this.stirs();
    }
    const taken = this.unread.subarray(0, count);
    this.unread = this.unread.subarray(count);
    return taken;
  }

  /** Waits for the end, in order or not. */
  async end() {
    while (!this.isOver) await this.stirs();
    return 'ended';
  }

  stirs() {
    return new Promise((resolve) => { this.wake = resolve; });
  }
}

/** Answers each line with what `obey` says to its first word and the rest. */
export async function answerLines(obey) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [name, ...rest] = line.split(' ');
    const answer = await obey(name, rest.join(' ')).catch((error) => `failed ${error.message}`);
    process.stdout.write(`${answer}\n`);
  }
}
