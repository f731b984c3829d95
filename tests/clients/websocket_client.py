"""A WebSocket client that does what each line of its input says, and answers with a line."""

import asyncio
import os
import sys

import websockets

sockets = []


async def echo(socket, length):
    message = os.urandom(length)
    await socket.send(message)
    return f"echoed {length}" if await socket.recv() == message else "something else came back"


async def obey(word, rest):
    if word == "open":
        sockets.append(await websockets.connect(rest, max_size=16 << 20, ping_interval=None))
        return "open"
    if word == "each":
        lengths = await asyncio.gather(*(echo(socket, int(rest)) for socket in sockets))
        return f"{len(set(lengths))} kind of answer: {lengths[0]}"
    socket = sockets[-1]
    if word == "echo":
        return await echo(socket, int(rest))
    if word == "text":
        await socket.send(rest)
        return await socket.recv()
    if word == "ping":
        await (await socket.ping(rest))
        return "pong"
    if word == "close":
        code, reason = rest.split(" ", 1)
        await socket.close(int(code), reason)
    if word == "ended":
        await socket.wait_closed()
        sockets.pop()
        return "ended"
    if word == "be-closed":
        await socket.send(f"close {rest}")
        await socket.wait_closed()
    sockets.pop()
    return f"closed {socket.close_code} {socket.close_reason}"


async def main():
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        word, _, rest = line.partition(" ")
        try:
            print(await obey(word, rest), flush=True)
        except websockets.InvalidStatusCode as error:
            print(f"refused {error.status_code}", flush=True)
        except (OSError, websockets.WebSocketException) as error:
            print(f"failed {error!r}", flush=True)


asyncio.run(main())
