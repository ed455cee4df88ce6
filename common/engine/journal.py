"""What a worker writes down: a request's events in the request log, and its own counters.

Must not decide anything; losing it loses no request.
"""

import logging
import resource
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from common.engine.events import Note, StepDone, StepFailed
from common.kv.pages import PagePool
from common.log import RequestLog, line
from common.messages import Metrics
from common.metrics import control_counters

_PAGE_BYTES = resource.getpagesize()
_STATM = Path("/proc/self/statm")
_COUNTED = {
    "preempted": (("num_preemptions_total", None),),
    "queued": (("prefix_cache_queries_total", "prompt_tokens"),),
    "context_begin": (("prefix_cache_hits_total", "cached_tokens"),),
}
"""Note -> counters it raises, by 1 or by one of its fields."""

_log = logging.getLogger(__name__)


class Journal:
    """One a worker, used by its loop's thread. Counter names: `common.metrics`."""

    def __init__(self, request_log: RequestLog, host: PagePool | None = None) -> None:
        """`host`: of the worker's host pages."""
        self._request_log = request_log
        self._host = host
        self._counters: Counter[str] = Counter()
        self._seconds = 0.0

    def note(self, note: Note) -> None:
        """One line of the request log, one of the debug log, and what is counted of it."""
        self._request_log.write(note.name, note.transfer, note.attempt, note.fields)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug(line(note.name, transfer=note.transfer, attempt=note.attempt, **note.fields))
        for counter, field in _COUNTED.get(note.name, ()):
            amount = 1 if field is None else note.fields.get(field, 0)
            if isinstance(amount, int):
                self._counters[counter] += amount

    def step(self, final: StepDone | StepFailed, n_rows: int) -> None:
        """A pass of `n_rows` rows is final."""
        if isinstance(final, StepFailed):
            self._counters["engine_step_failures_total"] += 1
            return
        self._counters["engine_steps_total"] += 1
        self._counters["engine_step_tokens_total"] += n_rows
        self._seconds += final.result.seconds

    def metrics(self, messages: Mapping[str, int], pulls: Mapping[str, float]) -> Metrics:
        """Everything counted so far. `messages`: a mailbox's counts; `pulls`: by metric's name."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        values: dict[str, float] = {
            **self._counters,
            **pulls,
            "engine_step_seconds_total": self._seconds,
            "request_log_lines_lost_total": self._request_log.lost_lines,
            "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
            "process_resident_memory_bytes": int(_STATM.read_text().split()[1]) * _PAGE_BYTES,
        }
        if self._host is not None:
            values["kv_host_held_pages"] = self._host.n_held
        values.update(control_counters(messages))
        return Metrics(values=tuple(values.items()))
