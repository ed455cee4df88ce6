"""What a worker writes down: a request's events in the request log, and its own counters.

Must not decide anything; losing it loses no request.
"""

import resource
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from pathlib import Path

from common.engine.events import Note, StepDone, StepFailed
from common.ids import TransferId
from common.kv.pages import PagePool
from common.log import RequestLog
from common.messages import Marks, Metrics
from common.moments import Mark, Moment
from common.worker_metrics import Tally, control_counters

_PAGE_BYTES = resource.getpagesize()
_STATM = Path("/proc/self/statm")
_COUNTED = {
    "preempted": (("num_preemptions_total", None),),
    "queued": (("prefix_cache_queries_total", "prompt_tokens"),),
    "context_begin": (("prefix_cache_hits_total", "cached_tokens"),),
}
"""Note -> counters it raises, by 1 or by one of its fields."""
_SPANS = {
    "request_queue_time_seconds": ("queued", "context_begin"),
    "request_prefill_time_seconds": ("context_begin", "context_end"),
    "request_handoff_time_seconds": ("migration_begin", "migration_end"),
}
"""Histogram -> the notes of one attempt that it is from and to."""
_MOMENTS = {moment.value: moment for moment in Moment}
_LAST = ("context_end", "migration_end", "decoding_end", "failed", "aborted")
_MOST_OPEN = 4096  # attempts whose notes are remembered: of some there will be no more
_MOST_MARKS = 4096  # since the last were told; older ones are lost


class Journal:
    """One a worker, used by its loop's thread. Counter names: `common.metrics`."""

    def __init__(
        self,
        request_log: RequestLog,
        host: PagePool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`host`: of the worker's host pages."""
        self._request_log = request_log
        self._host = host
        self._counters: Counter[str] = Counter()
        self._seconds = 0.0
        self._clock = clock
        self._noted: OrderedDict[tuple[TransferId, int], dict[str, float]] = OrderedDict()
        self._marks: deque[tuple[float, TransferId, int, Moment]] = deque(maxlen=_MOST_MARKS)
        self._spans = {name: Tally(name) for name in _SPANS}
        self._iterations = Tally("iteration_tokens_total")

    def note(self, note: Note) -> None:
        """One line of the request log, and what is counted of it."""
        self._request_log.write(note.name, note.transfer, note.attempt, note.fields)
        for counter, field in _COUNTED.get(note.name, ()):
            amount = 1 if field is None else note.fields.get(field, 0)
            if isinstance(amount, int):
                self._counters[counter] += amount
        self._span(note)
        moment = _MOMENTS.get(note.name)
        if moment is not None:
            self._marks.append((self._clock(), note.transfer, note.attempt, moment))

    def _span(self, note: Note) -> None:
        """How long it is since another note of the attempt, where somebody wants to know."""
        key, now = (note.transfer, note.attempt), self._clock()
        noted = self._noted.setdefault(key, {})
        for name, (begin, end) in _SPANS.items():
            if note.name == end and begin in noted:
                self._spans[name].observe(now - noted.pop(begin))
        noted[note.name] = now
        if note.name in _LAST:
            del self._noted[key]
        elif len(self._noted) > _MOST_OPEN:
            self._noted.popitem(last=False)

    def step(self, final: StepDone | StepFailed, n_rows: int) -> None:
        """A pass of `n_rows` rows is final."""
        if isinstance(final, StepFailed):
            self._counters["engine_step_failures_total"] += 1
            return
        self._counters["engine_steps_total"] += 1
        self._counters["engine_step_tokens_total"] += n_rows
        self._iterations.observe(n_rows)
        self._seconds += final.result.seconds

    def marks(self) -> Marks | None:
        """What has happened since the last call; None: nothing has."""
        now, marks = self._clock(), tuple(self._marks)
        self._marks.clear()
        if not marks:
            return None
        return Marks(marks=tuple(Mark(t, a, moment, now - at) for at, t, a, moment in marks))

    def metrics(self, messages: Mapping[str, int], pulls: Mapping[str, float]) -> Metrics:
        """Everything counted so far. `messages`: a mailbox's counts; `pulls`: by metric's name."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        values: dict[str, float] = {
            **self._counters,
            **self._iterations.values(),
            **pulls,
            "engine_step_seconds_total": self._seconds,
            "request_log_lines_lost_total": self._request_log.lost_lines,
            "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
            "process_resident_memory_bytes": int(_STATM.read_text().split()[1]) * _PAGE_BYTES,
        }
        for spans in self._spans.values():
            values |= spans.values()
        if self._host is not None:
            values["kv_host_held_pages"] = self._host.n_held
        values.update(control_counters(messages))
        return Metrics(values=tuple(values.items()))
