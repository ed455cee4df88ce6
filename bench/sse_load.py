"""Streams read as cheaply as can be: bytes are taken off sockets and events counted, not parsed.

Started by `bench.gateway`, which writes a Load (JSON) on its stdin; prints "done" when every
stream has ended, and exits with 1 and the server's words where one is refused or breaks. It notes
when each event came. Imports nothing of the engine.
"""

import selectors
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

RECEIVE_BYTES = 1 << 16
_END = b"\n\n"  # of an event: text in it is escaped, and a head's lines end otherwise
_OK = b"HTTP/1.1 200 "


class Load(msgspec.Struct, frozen=True):
    """What is asked."""

    port: int  # of 127.0.0.1
    model: str
    n_streams: int
    n_tokens: int
    first_prompt: int  # stream n's prompt is this token and n
    streams_per_s: float  # that begin
    notes: str  # a file: `got_ns` [streams, tokens] int64


@dataclass(slots=True, eq=False)
class _Stream:
    number: int
    connection: socket.socket
    n_events: int  # that were counted; below 0: those before the first token are still to come
    head: bytes = b""  # what came first
    last: bytes = b""  # byte


class StreamFailed(Exception):
    """What the server said instead of an answer."""


def request(load: Load, number: int) -> bytes:
    """As its client would send it."""
    body: dict[str, object] = {
        "model": load.model,
        "max_tokens": load.n_tokens,
        "ignore_eos": True,
        "stream": True,
        "prompt": [load.first_prompt, number],
    }
    data = msgspec.json.encode(body)
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Reader:
    """All streams of one process."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._selector = selectors.DefaultSelector()
        self.got_ns = np.full((load.n_streams, load.n_tokens), -1, np.int64)

    def run(self) -> None:
        """From the first stream's begin to the last one's end. Raises StreamFailed."""
        load, began = self._load, time.monotonic()
        n_begun = n_ended = 0
        while n_ended < load.n_streams:
            due = int((time.monotonic() - began) * load.streams_per_s) + 1
            while n_begun < min(due, load.n_streams):
                self._begin(n_begun)
                n_begun += 1
            wait_s = 1 / load.streams_per_s if n_begun < load.n_streams else None
            for key, _ in self._selector.select(wait_s):
                n_ended += self._take(key.data)

    def _begin(self, number: int) -> None:
        connection = socket.create_connection(("127.0.0.1", self._load.port))
        connection.sendall(request(self._load, number))
        connection.setblocking(False)  # noqa: FBT003 - the socket's own
        stream = _Stream(number, connection, n_events=0)
        self._selector.register(connection, selectors.EVENT_READ, stream)

    def _take(self, stream: _Stream) -> bool:
        """True: that was its last."""
        data = stream.connection.recv(RECEIVE_BYTES)
        now_ns = time.perf_counter_ns()
        if not stream.head:
            stream.head = data
        if not data or not stream.head.startswith(_OK):
            raise StreamFailed(f"stream {stream.number}: {stream.head.decode(errors='replace')}")
        first = stream.n_events
        stream.n_events += (stream.last + data).count(_END)
        stream.last = b"\n" if data.endswith(b"\n") and not data.endswith(_END) else b""
        self.got_ns[stream.number, first : stream.n_events] = now_ns
        if stream.n_events <= self._load.n_tokens:
            return False
        self._selector.unregister(stream.connection)
        stream.connection.close()
        return True


def main() -> int:
    load = msgspec.json.decode(sys.stdin.buffer.readline(), type=Load)
    reader = Reader(load)
    try:
        reader.run()
    except (StreamFailed, OSError) as error:
        print(error, flush=True)
        return 1
    with Path(load.notes).open("wb") as file:
        np.save(file, reader.got_ns)
    print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
