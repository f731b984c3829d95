"""Forwards connections over mutual TLS, as a member of the mesh that uses HTTP/2 without a sidecar.

Arguments: the port to listen at, the port to connect to, a file with a key and a certificate.
"""

import asyncio
import ssl
import sys


async def forward(reader, writer):
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        pass
    finally:
        writer.close()


async def main():
    listen, connect, credential = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # The server is not verified here: identities are not host names.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(credential)

    # The loop keeps only weak references to tasks.
    tasks = set()

    async def handle_connection(reader, writer):
        tasks.add(asyncio.current_task())
        upstream = await asyncio.open_connection("127.0.0.1", connect, ssl=context)
        assert upstream[1].get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        await asyncio.gather(forward(reader, upstream[1]), forward(upstream[0], writer))

    async with await asyncio.start_server(handle_connection, "127.0.0.1", listen):
        print("listening", flush=True)
        await asyncio.Future()


asyncio.run(main())
