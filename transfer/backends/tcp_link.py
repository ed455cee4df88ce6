"""A reader's link to one owner's page server: what is asked for, what has come, when to ask anew.

Replies come in the order of their requests, so whatever else comes shows that something was lost
or forged: the link is opened anew, and what has not come is asked for again. Asking is idempotent.
Nothing of the old link can arrive on the new one. Must be used by one thread.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import zmq

from common.curve import CurveKey
from common.errors import PeerError
from common.messages import PageRef, RegionKey
from transfer.api import Copy, Region
from transfer.backends.tcp_messages import (
    MAX_HEADER_BYTES,
    PAGE_PROTOCOL,
    REQUEST_BYTES,
    WINDOW_BYTES,
    PagesHere,
    PagesRefused,
    PagesWanted,
    Refusal,
    checksum,
    encoder,
    page_socket,
    reply_decoder,
)
from transfer.backends.tcp_pages import PageSink, Writing
from transfer.plan import windows
from transfer.tickets import Pull, Reason, Tickets

_MAX_REOPENED = 4  # in a row, for bad frames, with no page between: then it is no page server
_RECEIVE_BATCH = 16  # replies taken before other links have their turn
_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 500


@dataclass(slots=True, eq=False)
class _Job:
    """A pull; its windows are asked for and come in order."""

    pull: Pull
    windows: tuple[tuple[Copy, ...], ...]
    n_asked: int = 0
    n_here: int = 0
    n_written: int = 0  # of those


@dataclass(frozen=True, slots=True)
class _Asked:
    request: int
    job: _Job
    window: tuple[Copy, ...]


@dataclass(frozen=True, slots=True)
class _Arriving:
    """A window that is here, and on its way into local memory."""

    job: _Job
    n_pages: int
    writing: Writing


class Link:
    """Its `socket` is replaced when it is opened anew: look it up for each wait."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        remote: RegionKey,
        sinks: Mapping[Region, PageSink],
        tickets: Tickets,
        curve: CurveKey | None,
    ) -> None:
        """`sinks`: of regions that are pulled into. Raises PeerError: the door is no address."""
        self._context = context
        self._curve = curve
        self._remote = remote
        self._door = remote.doors["tcp"]
        self._sinks = sinks
        self._tickets = tickets
        self._jobs: dict[_Job, None] = {}  # not final
        self._to_ask: deque[_Job] = deque()  # one window each in turn
        self._asked: deque[_Asked] = deque()  # of final pulls too: their replies still come
        self._arriving: deque[_Arriving] = deque()
        self._n_requests = 0
        self._progress_s = 0.0
        self._opened_s = 0.0
        self._n_reopened = 0
        self._broken = False  # given up
        self.socket = self._open()

    @property
    def busy(self) -> bool:
        """There are pulls that are not final."""
        return bool(self._jobs)

    @property
    def is_writing(self) -> bool:
        """A device still is."""
        return bool(self._arriving)

    def add(self, pull: Pull, now: float) -> None:
        if not self._jobs:
            self._progress_s = self._opened_s = now
        job = _Job(pull, windows(pull.copies, self._remote.page_bytes, REQUEST_BYTES))
        self._jobs[job] = None
        self._to_ask.append(job)

    def drop_cancelled(self) -> None:
        for job in [job for job in self._jobs if job.pull.cancelled]:
            self._fail(job, Reason.CANCELLED, "")

    def fail_all(self, reason: Reason, detail: str) -> None:
        for job in list(self._jobs):
            self._fail(job, reason, detail)

    def close(self) -> None:
        self.socket.close()

    # --- asking ------------------------------------------------------------------------------

    def ask_more(self) -> None:
        """As much as the window allows."""
        while self._to_ask and not self._broken:
            job = self._to_ask[0]
            window = job.windows[job.n_asked]
            if self._asked and self._pages_asked() + len(window) > self._window_pages():
                return
            if not self._send(job, window):
                return
            job.n_asked += 1
            self._to_ask.popleft()
            if job.n_asked < len(job.windows):
                self._to_ask.append(job)

    def _pages_asked(self) -> int:
        return sum(len(asked.window) for asked in self._asked)

    def _window_pages(self) -> int:
        return WINDOW_BYTES // self._remote.page_bytes

    def _send(self, job: _Job, window: tuple[Copy, ...]) -> bool:
        wanted = PagesWanted(
            protocol=PAGE_PROTOCOL,
            request=self._n_requests,
            owner=self._remote.owner,
            region=job.pull.remote.region,
            pages=tuple(PageRef(copy.remote, copy.generation) for copy in window),
        )
        try:
            self.socket.send(encoder.encode(wanted), zmq.NOBLOCK)
        except zmq.Again:
            return False
        self._asked.append(_Asked(self._n_requests, job, window))
        self._n_requests += 1
        return True

    # --- receiving -----------------------------------------------------------------------------

    def receive(self, now: float) -> None:
        self._take_note()
        for _ in range(_RECEIVE_BATCH):
            if not self._has_room():
                return
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            if self._take(frames):
                self._progress_s, self._n_reopened = now, 0
                continue
            self._tickets.count(bad_frames=1)
            self._n_reopened += 1
            if self._n_reopened > _MAX_REOPENED:
                self._give_up(Reason.REFUSED, f"what answers at {self._door} is no page server")
            else:
                self._reopen(now)
            return

    def _has_room(self) -> bool:
        """For the answer to what was asked first."""
        return not self._asked or self._sinks[self._asked[0].job.pull.local].has_room

    def _take(self, frames: list[zmq.Frame]) -> bool:
        """False: this is not the answer to what was asked first."""
        try:
            reply = reply_decoder.decode(frames[0].buffer)
        except msgspec.DecodeError:
            return False
        if not self._asked or reply.request != self._asked[0].request:
            return False
        asked = self._asked[0]
        match reply:
            case PagesRefused():
                if asked.job in self._jobs:
                    reason = Reason.STALE if reply.reason is Refusal.STALE else Reason.REFUSED
                    self._fail(asked.job, reason, f"{reply.reason}: {reply.detail}")
            case PagesHere():
                if not self._fits(asked.window, reply, frames[1:]):
                    return False
                self._put(asked, frames[1:])
        self._asked.popleft()
        return True

    def _fits(self, window: tuple[Copy, ...], reply: PagesHere, pages: list[zmq.Frame]) -> bool:
        if not len(window) == len(reply.pages) == len(pages):
            return False
        return all(
            (there.page, there.generation) == (copy.remote, copy.generation)
            and len(page.buffer) == self._remote.page_bytes
            and checksum(page.buffer) == there.checksum
            for copy, there, page in zip(window, reply.pages, pages, strict=True)
        )

    def _put(self, asked: _Asked, frames: list[zmq.Frame]) -> None:
        job, window = asked.job, asked.window
        if job not in self._jobs:
            self._tickets.count(late_replies=1)
            return
        job.n_here += 1
        writing = self._sinks[job.pull.local].write([copy.local for copy in window], frames)
        self._arriving.append(_Arriving(job, len(window), writing))
        self._take_note()

    def _take_note(self) -> None:
        """Of what is written by now; what came first is written first."""
        while self._arriving and self._arriving[0].writing.is_done:
            self._written(self._arriving.popleft())

    def _written(self, arrived: _Arriving) -> None:
        arrived.writing.close()
        self._tickets.count(pulled_bytes=arrived.n_pages * self._remote.page_bytes)
        job = arrived.job
        job.n_written += 1
        if job.n_written == len(job.windows):
            del self._jobs[job]
            self._tickets.done(job.pull)

    def finish(self) -> None:
        """Returns when nothing is on its way into local memory. RuntimeError: the device that it
        goes to has failed."""
        arriving, self._arriving = self._arriving, deque[_Arriving]()
        for arrived in arriving:
            arrived.writing.finish()
            self._written(arrived)

    # --- ending and beginning again ------------------------------------------------------------

    def judge(self, now: float, progress_timeout_s: float) -> bool:
        """Every so often: ask anew where nothing comes; False: given up, all pulls have failed."""
        if self._jobs and now - self._progress_s > progress_timeout_s:
            detail = f"nothing from {self._door} for {now - self._progress_s:.3f} s"
            self._give_up(Reason.NO_PROGRESS, detail)
        elif self._jobs and now - max(self._progress_s, self._opened_s) > progress_timeout_s / 2:
            self._reopen(now)
        return not self._broken

    def excuse(self, now: float) -> None:
        """This process stood still, and cannot know what its peer did: time begins anew."""
        self._progress_s = self._opened_s = now

    def _give_up(self, reason: Reason, detail: str) -> None:
        self.fail_all(reason, detail)
        self._broken = True

    def _fail(self, job: _Job, reason: Reason, detail: str) -> None:
        """Final, one way or the other: nothing is written for a job that is not in `_jobs`."""
        self.finish()
        if job not in self._jobs:
            return  # that was the last of it
        del self._jobs[job]
        if job in self._to_ask:
            self._to_ask.remove(job)
        self._tickets.fail(job.pull, reason, detail)

    def _reopen(self, now: float) -> None:
        self.socket.close()
        self._tickets.count(retries=1)
        try:
            self.socket = self._open()
        except PeerError as error:
            self._give_up(Reason.UNREACHABLE, str(error))
            return
        self._opened_s = now
        self._asked.clear()
        for job in self._jobs:
            job.n_asked = job.n_here
        self._to_ask = deque(job for job in self._jobs if job.n_asked < len(job.windows))
        self.ask_more()

    def _open(self) -> "zmq.Socket[bytes]":
        if not self._door.startswith("tcp://"):
            raise PeerError(f"{self._door!r} is no address of a page server")
        socket = None
        try:
            max_bytes = max(MAX_HEADER_BYTES, self._remote.page_bytes)
            socket = page_socket(self._context, zmq.DEALER, max_bytes)
            socket.set(zmq.IPV6, 1)
            socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
            socket.set(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
            if self._curve is not None:
                self._curve.dial(socket)
            socket.connect(self._door)
        except zmq.ZMQError as error:
            if socket is not None:
                socket.close()
            raise PeerError(f"{self._door!r}: {error.strerror}") from error
        return socket
