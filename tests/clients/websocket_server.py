"""Echoes WebSocket messages and executes commands in them; prints the close code of each connection."""

import asyncio
import sys

import websockets


async def serve(socket, *_path):
    try:
        # A client that only receives gets a message, and then the connection is closed.
        if socket.path == "/greeted":
            await socket.send("welcome")
            socket.transport.close()
        async for message in socket:
            if isinstance(message, bytes):
                await socket.send(message)
            elif message == "ping me":
                await (await socket.ping(b"are you there?"))
                await socket.send("you are there")
            elif message.startswith("close "):
                _, code, reason = message.split(" ", 2)
                await socket.close(int(code), reason)
            else:
                await socket.send(message)
    except websockets.ConnectionClosed:
        pass
    print(f"websocket ended: {socket.close_code} {socket.close_reason}", flush=True)


async def main():
    port = int(sys.argv[1])
    async with websockets.serve(serve, "127.0.0.1", port, max_size=16 << 20, ping_interval=None):
        await asyncio.Future()


asyncio.run(main())
