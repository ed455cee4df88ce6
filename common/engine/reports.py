"""What a worker tells of itself: its pulse (heartbeats) and its load and prefix events (snapshots).

Pure: part of a core. It reads the pool and what it is told of steps; it holds no request.
"""

from collections import deque
from dataclasses import dataclass
from statistics import median

from common.ids import InstanceId, PageHash, Role, StepId
from common.kv.pages import PagePool
from common.messages import (
    Heartbeat,
    Hello,
    Listed,
    PrefixCacheReset,
    Progress,
    ResetPrefixCache,
    Snapshot,
)

HEARTBEAT_BUSY_S = 0.25  # while something is shared with the peer
HEARTBEAT_IDLE_S = 1.0  # or as seldom as a busy one, if that is more
SNAPSHOT_EVERY_S = 0.05
STILL_S = 2.5  # without a heartbeat: the process has not run
RECENT_STEPS = 32
LARGE_STEPS = 8  # of the largest, to tell how fast prompts are computed
PROMPT_ROWS = 32  # steps of fewer do not show it
LIKE_STEPS = 8  # of these, to tell from how long one of as many rows takes
LIKE_ROWS = 0.125  # how much their rows may differ, as a share


class Pulse:
    """Steps done, the age of the one that runs, and how long it should take."""

    def __init__(self) -> None:
        self._done = 0
        self._began: float | None = None
        self._rows = 0
        self._recent: deque[tuple[int, float]] = deque(maxlen=RECENT_STEPS)
        self._large: deque[tuple[int, float]] = deque(maxlen=LARGE_STEPS)
        self._told_at: float | None = None
        self.running: StepId | None = None

    def begin(self, step: StepId, rows: int, now: float) -> None:
        self.running, self._began, self._rows = step, now, rows

    def end(self, now: float, n_rounds: int = 1) -> None:
        """The running step is final, well or badly, and was computed so often."""
        if self._began is not None:
            seconds = (now - self._began) / n_rounds
            self._recent.append((self._rows, seconds))
            self._learn(self._rows, seconds)
        self.running = self._began = None
        self._done += n_rounds

    @property
    def ends_at(self) -> float | None:
        """When the running step should end: as the median of recent ones of about as many rows.

        None: there are none, or nothing runs.
        """
        if self._began is None:
            return None
        near = self._rows * LIKE_ROWS
        like = [s for rows, s in self._recent if abs(rows - self._rows) <= near][-LIKE_STEPS:]
        return self._began + median(like) if like else None

    @property
    def step_s(self) -> float:
        """Median seconds of recent steps; 0: none yet."""
        return median(s for _, s in self._recent) if self._recent else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Rows a second over recent steps; 0: none yet."""
        seconds = sum(s for _, s in self._recent)
        return sum(rows for rows, _ in self._recent) / seconds if seconds > 0 else 0.0

    @property
    def prompt_tokens_per_s(self) -> float:
        """Median rows a second of the last large steps, whose rows are no less than half of the
        largest of them: others do not show what the device can. 0: all were small.

        What a small step takes lately is taken off, half of their time at most: prompts come on top
        of it, and large steps of one worker may be smaller than those of another."""
        base_s = min((s for rows, s in self._recent if rows < PROMPT_ROWS), default=0.0)
        rates = [rows / max(s - base_s, s / 2) for rows, s in self._large]
        return median(rates) if rates else 0.0

    def _learn(self, rows: int, seconds: float) -> None:
        largest = max((one for one, _ in self._large), default=PROMPT_ROWS)
        if seconds > 0 and 2 * rows >= largest and rows >= PROMPT_ROWS:
            if rows > 2 * largest:
                self._large.clear()
            self._large.append((rows, seconds))

    def progress(self, now: float) -> Progress:
        """What a heartbeat tells. While this process stood still the running step did not age."""
        still_s = 0.0 if self._told_at is None else now - self._told_at
        self._told_at = now
        if self._began is not None and still_s > STILL_S:
            self._began = min(now, self._began + still_s)
        age_s = 0.0 if self._began is None else now - self._began
        rate = self.tokens_per_s
        return Progress(self._done, age_s, self._rows / rate if rate else 0.0)


@dataclass(frozen=True, slots=True)
class Load:
    """The part of a snapshot that is not the pool's."""

    running: int
    waiting: int
    queued_tokens: int


class Snapshots:
    """Sequenced per gateway, so that each can tell that it missed one."""

    def __init__(self, pool: PagePool, pulse: Pulse) -> None:
        self._pool = pool
        self._pulse = pulse
        self._sequence: dict[InstanceId, int] = {}
        self._whole: set[InstanceId] = set()
        self._last: tuple[Load, int] | None = None
        self.due: float | None = None  # when to call `take`; None: nothing new

    def add(self, gateway: InstanceId, now: float) -> None:
        """A new gateway, or one that lost count: the next snapshot tells it everything."""
        self._sequence.setdefault(gateway, 0)
        self._whole.add(gateway)
        self.due = now

    def drop(self, gateway: InstanceId) -> None:
        self._sequence.pop(gateway, None)
        self._whole.discard(gateway)

    def touch(self, now: float) -> None:
        """Something may have changed."""
        if self._sequence and self.due is None:
            self.due = now + SNAPSHOT_EVERY_S

    def beat(self, peer: InstanceId, transfers: tuple[Listed, ...], now: float) -> Heartbeat:
        """By which a gateway can tell that it has missed the last one, too."""
        progress = self._pulse.progress(now)
        sequence = self._sequence.get(peer)
        return Heartbeat(transfers=transfers, progress=progress, snapshots=sequence)

    def reset(self, asked: ResetPrefixCache) -> PrefixCacheReset:
        """The pool forgets what it has; what is held stays, and is found no more."""
        self._pool.drop_cache()
        return PrefixCacheReset(number=asked.number)

    def take(self, now: float, load: Load) -> list[tuple[InstanceId, Snapshot]]:
        """What to send now. Empty if it is not due, or if nothing has changed after all."""
        if self.due is None or now < self.due:
            return []
        self.due = None
        stored, removed = self._pool.drain_events()
        state = (load, self._pool.n_available)
        news = state != self._last or stored or removed
        self._last = state
        everything: tuple[PageHash, ...] = tuple(self._pool.published()) if self._whole else ()
        snapshots: list[tuple[InstanceId, Snapshot]] = []
        for gateway in self._sequence:
            whole = gateway in self._whole
            if not (whole or news):
                continue
            self._sequence[gateway] += 1
            snapshots.append(
                (
                    gateway,
                    Snapshot(
                        sequence=self._sequence[gateway],
                        whole=whole,
                        n_pages=self._pool.n_pages,
                        free_pages=self._pool.n_available,
                        cached_pages=self._pool.n_cached,
                        running=load.running,
                        waiting=load.waiting,
                        queued_tokens=load.queued_tokens,
                        step_s=self._pulse.step_s,
                        tokens_per_s=self._pulse.prompt_tokens_per_s,
                        stored=everything if whole else stored,
                        removed=() if whole else removed,
                    ),
                )
            )
        self._whole.clear()
        return snapshots


class Peers:
    """Who is welcome, and when each is owed a heartbeat."""

    def __init__(self, heartbeat_s: float) -> None:
        """`heartbeat_s`: between two while something is shared with the peer."""
        self._heartbeat_s = heartbeat_s
        self._hellos: dict[InstanceId, Hello] = {}
        self._due: dict[InstanceId, float] = {}
        self._next_due: float | None = None

    def __contains__(self, instance: InstanceId) -> bool:
        return instance in self._hellos

    def get(self, instance: InstanceId) -> Hello | None:
        return self._hellos.get(instance)

    def is_gateway(self, instance: InstanceId) -> bool:
        hello = self._hellos.get(instance)
        return hello is not None and hello.peer.role is Role.GATEWAY

    def up(self, hello: Hello, now: float) -> None:
        self._hellos[hello.peer.instance] = hello
        self._set_due(hello.peer.instance, now)

    def down(self, instance: InstanceId) -> None:
        self._hellos.pop(instance, None)
        self._due.pop(instance, None)
        self._next_due = min(self._due.values(), default=None)

    def owed(self, now: float) -> list[InstanceId]:
        """Peers whose heartbeat is due. Each must be answered with `beaten`."""
        if self._next_due is None or now < self._next_due:
            return []
        return [peer for peer, due in self._due.items() if now >= due]

    def beaten(self, peer: InstanceId, now: float, *, busy: bool) -> None:
        self._set_due(
            peer, now + (self._heartbeat_s if busy else max(self._heartbeat_s, HEARTBEAT_IDLE_S))
        )

    def _set_due(self, peer: InstanceId, at: float) -> None:
        self._due[peer] = at
        self._next_due = min(self._due.values())

    @property
    def next_due(self) -> float | None:
        return self._next_due
