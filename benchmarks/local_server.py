"""A chat server of known latency for benchmarks, in a process of its own so that it does not share the client's interpreter lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# It counts calls (``GET`` says how many) and takes any number at once.
_SERVER = r"""
import asyncio, json, sys
latency, said = float(sys.argv[1]), sys.argv[2]
calls = 0
body = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "scripted",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}],
    "usage": {"prompt_tokens": 500, "completion_tokens": 20, "total_tokens": 520}}).encode()

async def serve(reader, writer):
    global calls
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(l.split(b":")[1]) for l in head.split(b"\r\n") if l.lower().startswith(b"content-length")), 0)
            await reader.readexactly(length)
            if head.startswith(b"POST"):
                calls += 1
                await asyncio.sleep(latency)
                answer = body
            else:
                answer = json.dumps({"calls": calls, "object": "list", "data": []}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@contextmanager
def serving(latency: float, said: str) -> Iterator[str]:
    """A server that answers every chat completion with ``said`` after ``latency`` seconds; its base URL."""
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(latency), said], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
    finally:
        server.kill()
