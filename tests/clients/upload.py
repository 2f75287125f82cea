"""Uploads over pooled connections, by widely used clients.

    upload.py CLIENT HOST PORT COUNT SIZE...

For each size: posts a body of that many bytes COUNT times, one after the other, and writes a line of JSON that counts the
statuses, and the exceptions where there was no answer.
"""

import asyncio
import collections
import http.client
import json
import sys

import aiohttp
import httpx
import requests

# No request may take longer, in seconds.
PATIENCE = 20

# The environment names no proxy: these go to a server on this machine.


def name(error):
    """Returns the type of an exception, and of its cause."""
    cause = error.__cause__ or error.__context__
    return type(error).__name__ + (f" ({type(cause).__name__})" if cause else "")


def counted(post, count, close=lambda: None):
    seen = collections.Counter()
    for _ in range(count):
        try:
            seen[str(post())] += 1
        except Exception as error:
            seen[name(error)] += 1
            close()
    return seen


def with_http_client(host, port, body, count):
    connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)

    def post():
        connection.request("POST", "/", body)
        response = connection.getresponse()
        response.read()
        return response.status

    return counted(post, count, connection.close)


def with_requests(host, port, body, count):
    with requests.Session() as session:
        session.trust_env = False
        url = f"http://{host}:{port}/"
        return counted(lambda: session.post(url, data=body, timeout=PATIENCE).status_code, count)


def with_httpx(host, port, body, count):
    with httpx.Client(trust_env=False, timeout=PATIENCE) as client:
        url = f"http://{host}:{port}/"
        return counted(lambda: client.post(url, content=body).status_code, count)


def with_aiohttp(host, port, body, count):
    async def run():
        seen = collections.Counter()
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for _ in range(count):
                try:
                    async with session.post(f"http://{host}:{port}/", data=body) as response:
                        await response.read()
                        seen[str(response.status)] += 1
                except Exception as error:
                    seen[name(error)] += 1
        return seen

    return asyncio.run(run())


CLIENTS = {
    "http.client": with_http_client,
    "requests": with_requests,
    "httpx": with_httpx,
    "aiohttp": with_aiohttp,
}


def main():
    client, host, port, count, *sizes = sys.argv[1:]
    for size in sizes:
        seen = CLIENTS[client](host, int(port), bytes(int(size)), int(count))
        print(json.dumps(seen), flush=True)


main()
