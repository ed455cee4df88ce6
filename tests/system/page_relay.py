"""A relay before one worker's page server, over TCP: it may lose what passes, or flip a bit of it.

Each of its readers has a connection of its own to the server. Used by one thread, but for the plain
attributes, which a test sets at any time.
"""

from collections.abc import Callable

import zmq

Attend = Callable[["zmq.Socket[bytes]", Callable[[], None]], None]
"""Call that when this socket has something."""


class PageFront:
    """Forwards `door` to the server's real one."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", real: str, attend: Attend
    ) -> None:
        self.real = real
        self.is_cut = False  # requests are lost
        self.n_flips = 0  # how many more replies lose a bit of their first page
        self.n_pages = 0  # that have passed
        self._context = context
        self._attend = attend
        self._servers: dict[bytes, zmq.Socket[bytes]] = {}  # by reader
        self._router = context.socket(zmq.ROUTER)
        self._router.bind("tcp://127.0.0.1:*")
        self.door = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        attend(self._router, self._ask)

    def close(self) -> None:
        for socket in (self._router, *self._servers.values()):
            socket.close(linger=0)

    def _ask(self) -> None:
        reader, *frames = self._router.recv_multipart()
        if not self.is_cut:
            self._server(reader).send_multipart(frames)

    def _server(self, reader: bytes) -> "zmq.Socket[bytes]":
        server = self._servers.get(reader)
        if server is None:
            server = self._servers[reader] = self._context.socket(zmq.DEALER)
            server.connect(self.real)
            self._attend(server, lambda: self._answer(reader))
        return server

    def _answer(self, reader: bytes) -> None:
        header, *pages = self._servers[reader].recv_multipart()
        if self.is_cut:
            return
        if pages and self.n_flips:
            self.n_flips -= 1
            middle = len(pages[0]) // 2
            pages[0] = b"".join(
                (pages[0][:middle], bytes([pages[0][middle] ^ 1]), pages[0][middle + 1 :])
            )
        self.n_pages += len(pages)
        self._router.send_multipart([reader, header, *pages])
