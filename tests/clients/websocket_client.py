"""A WebSocket client that executes the command in each line of its input, and prints a line with the result."""

import asyncio
import os
import sys

import websockets

sockets = []


async def echo(socket, length):
    message = os.urandom(length)
    await socket.send(message)
    return f"echoed {length}" if await socket.recv() == message else "the messages differ"


async def execute(command, argument):
    if command == "open":
        sockets.append(await websockets.connect(argument, max_size=16 << 20, ping_interval=None))
        return "open"
    if command == "each":
        lengths = await asyncio.gather(*(echo(socket, int(argument)) for socket in sockets))
        return f"{len(set(lengths))} kind of response: {lengths[0]}"
    socket = sockets[-1]
    if command == "echo":
        return await echo(socket, int(argument))
    if command == "text":
        await socket.send(argument)
        return await socket.recv()
    if command == "ping":
        await (await socket.ping(argument))
        return "pong"
    if command == "close":
        code, reason = argument.split(" ", 1)
        await socket.close(int(code), reason)
    if command == "ended":
        await socket.wait_closed()
        sockets.pop()
        return "ended"
    if command == "be-closed":
        await socket.send(f"close {argument}")
        await socket.wait_closed()
    sockets.pop()
    return f"closed {socket.close_code} {socket.close_reason}"


async def main():
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        command, _, argument = line.partition(" ")
        try:
            print(await execute(command, argument), flush=True)
        except websockets.InvalidStatusCode as error:
            print(f"refused {error.status_code}", flush=True)
        except (OSError, websockets.WebSocketException) as error:
            print(f"failed {error!r}", flush=True)


asyncio.run(main())
