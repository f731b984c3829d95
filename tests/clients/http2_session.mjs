// Shared code of HTTP/2 clients that execute the command in each line of their input, and print a line with the
// result.

import { createInterface } from 'node:readline';
import http2 from 'node:http2';

const sessions = new Map();

/** The connection to an address, opened as soon as its peer's settings are received. */
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

/** A response stream with its received, unread bytes. */
export class ResponseStream {
  constructor(stream) {
    this.stream = stream;
    this.unread = Buffer.alloc(0);
    this.hasEnded = false;
    this.notify = () => {};
    stream.on('data', (piece) => { this.unread = Buffer.concat([this.unread, piece]); this.notify(); });
    for (const end of ['end', 'close']) {
      stream.on(end, () => { this.hasEnded = true; this.notify(); });
    }
  }

  /** Returns the status of the response. */
  receiveStatus() {
    return new Promise((resolve, reject) => {
      this.stream.once('response', (head) => resolve(head[':status']));
      this.stream.once('error', reject);
    });
  }

  /** Returns this number of next bytes. */
  async readBytes(count) {
    while (this.unread.length < count) {
      if (this.hasEnded) throw new Error('the stream ended');
      await this.waitForEvent();
    }
    const bytes = this.unread.subarray(0, count);
    this.unread = this.unread.subarray(count);
    return bytes;
  }

  /** Waits for the end, with or without an error. */
  async waitForEnd() {
    while (!this.hasEnded) await this.waitForEvent();
    return 'ended';
  }

  waitForEvent() {
    return new Promise((resolve) => { this.notify = resolve; });
  }
}

/** Prints the result of `execute` for the first word of each line and the remaining words. */
export async function runCommands(execute) {
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...words] = line.split(' ');
    const result = await execute(command, words.join(' ')).catch((error) => `failed ${error.message}`);
    process.stdout.write(`${result}\n`);
  }
}
