"""Calls a service through the HTTP proxy that its environment names, as any program with httpx would."""

import asyncio
import sys

import httpx

BODY = b"0123456789abcdef" * 16 * 1024


async def chunked_body():
    """Returns the body without a length."""
    for start in range(0, len(BODY), 10_000):
        yield BODY[start : start + 10_000]


async def is_expected(expected, request):
    try:
        response = await request
    except httpx.HTTPError as error:
        print("unexpected:", repr(error), flush=True)
        return False
    if response.status_code != 200 or response.content != expected:
        print("unexpected:", response, response.content[:200], flush=True)
        return False
    return True


async def main(url, requests):
    async with httpx.AsyncClient(timeout=30) as client:
        count = 0
        for number in range(requests):
            path = f"/hello/{number}"
            count += await is_expected(f"GET {path} ".encode(), client.get(url + path))
        posts = []
        for number in range(requests):
            path = f"/post/{number}"
            body = chunked_body() if number % 2 == 0 else BODY
            posts.append(is_expected(f"POST {path} ".encode() + BODY, client.post(url + path, content=body)))
        count += sum(await asyncio.gather(*posts))
    print(f"httpx client: {count} of {2 * requests} as expected", flush=True)
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
