"""Uploads over pooled connections, by widely used clients.

    upload.py CLIENT URL COUNT ENCODING SIZE...

ENCODING is `identity`, or `gzip` for bodies that the server has to decompress. The certificate of a URL with https is
not checked. For each size: posts a body of that many bytes COUNT times, one after the other, and writes a line of JSON that counts the
statuses, and the exceptions where there was no answer.
"""

import asyncio
import collections
import gzip
import http.client
import json
import os
import ssl
import sys
import urllib.parse
import warnings

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


def unchecked():
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def with_http_client(url, headers, body, count):
    server = urllib.parse.urlsplit(url).netloc
    if url.startswith("https:"):
        connection = http.client.HTTPSConnection(server, timeout=PATIENCE, context=unchecked())
    else:
        connection = http.client.HTTPConnection(server, timeout=PATIENCE)

    def post():
        connection.request("POST", "/", body, headers)
        response = connection.getresponse()
        response.read()
        return response.status

    return counted(post, count, connection.close)


def with_requests(url, headers, body, count):
    with requests.Session() as session:
        session.trust_env = False
        session.verify = False
        post = lambda: session.post(url, data=body, headers=headers, timeout=PATIENCE)
        return counted(lambda: post().status_code, count)


def with_httpx(url, headers, body, count):
    with httpx.Client(trust_env=False, timeout=PATIENCE, verify=False) as client:
        return counted(lambda: client.post(url, content=body, headers=headers).status_code, count)


def with_aiohttp(url, headers, body, count):
    async def run():
        seen = collections.Counter()
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for _ in range(count):
                try:
                    async with session.post(url, data=body, headers=headers, ssl=False) as response:
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
    client, url, count, encoding, *sizes = sys.argv[1:]
    warnings.simplefilter("ignore")
    headers = {"content-encoding": "gzip"} if encoding == "gzip" else {}
    for size in sizes:
        # Random bytes do not become fewer.
        body = gzip.compress(os.urandom(int(size))) if encoding == "gzip" else bytes(int(size))
        seen = CLIENTS[client](url, headers, body, int(count))
        print(json.dumps(seen), flush=True)


main()
