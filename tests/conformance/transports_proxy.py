"""A TCP proxy that cuts or corrupts what flows from a page server to its reader."""

import selectors
import socket
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65_536


@dataclass(eq=False)
class _Pipe:
    source: socket.socket
    target: socket.socket
    from_server: bool
    n_bytes: int = 0


class Proxy:
    """Forwards 127.0.0.1:`port` to the address given. Bytes are counted from the server, per
    connection; plain attributes, set by the test at any time, say what happens to them."""

    def __init__(self, to: str) -> None:
        host, _, port = to.removeprefix("tcp://").rpartition(":")
        self._to = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.door = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.cut_at: int | None = None  # byte at which a connection is cut
        self.n_cuts = 0  # how many more are cut
        self.flip_at: int | None = None  # byte whose lowest bit is flipped
        self.n_flips = 0
        self.refuses = False  # new connections are closed at once
        self.n_connections = 0
        self._ended = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ)
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.02):
                if key.data is None:
                    self._admit()
                elif key.data.source.fileno() >= 0:  # not closed since the selector saw it
                    self._forward(key.data)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _admit(self) -> None:
        client, _ = self._listener.accept()
        self.n_connections += 1
        if self.refuses:
            client.close()
            return
        server = socket.create_connection(self._to)
        up = _Pipe(client, server, from_server=False)
        down = _Pipe(server, client, from_server=True)
        self._selector.register(client, selectors.EVENT_READ, up)
        self._selector.register(server, selectors.EVENT_READ, down)

    def _forward(self, pipe: _Pipe) -> None:
        try:
            data = bytearray(pipe.source.recv(_CHUNK_BYTES))
            if data and pipe.from_server:
                data = self._harm(pipe, data)
            pipe.target.sendall(data)
        except OSError:
            data = bytearray()
        if not data:
            for end in (pipe.source, pipe.target):
                self._selector.unregister(end)
                end.close()

    def _harm(self, pipe: _Pipe, data: bytearray) -> bytearray:
        """What is left of it; nothing: cut the connection."""
        at, pipe.n_bytes = pipe.n_bytes, pipe.n_bytes + len(data)
        if self.flip_at is not None and self.n_flips and at <= self.flip_at < pipe.n_bytes:
            data[self.flip_at - at] ^= 1
            self.n_flips -= 1
        if self.cut_at is not None and self.n_cuts and at <= self.cut_at < pipe.n_bytes:
            self.n_cuts -= 1
            return bytearray()
        return data
