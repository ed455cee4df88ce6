"""What a worker counts of the notes that its core makes."""

from common.engine.events import Note
from common.engine.journal import Journal
from common.ids import InstanceId, Role, TransferId
from common.log import RequestLog
from common.messages import Marks
from common.moments import Mark, Moment

Values = dict[str, float]


class Watched:
    """A journal, and a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        log = RequestLog(None, InstanceId("d"), Role.DECODE)
        self.journal = Journal(log, clock=lambda: self.now)

    def note(self, name: str, transfer: str = "a", attempt: int = 1, *, at: float) -> None:
        self.now = at
        self.journal.note(Note(TransferId(transfer), attempt, name, {}))

    @property
    def values(self) -> Values:
        return dict(self.journal.metrics({}, {}).values)


def test_how_long_prompts_waited_and_took() -> None:
    watched = Watched()
    assert watched.values["request_queue_time_seconds_count"] == 0
    watched.note("queued", at=1.0)
    watched.note("queued", "b", at=1.5)
    watched.note("context_begin", at=2.0)
    watched.note("context_begin", "b", at=4.0)
    watched.note("context_end", at=5.0)
    values = watched.values
    assert values["request_queue_time_seconds_sum"] == 1.0 + 2.5
    assert values["request_queue_time_seconds_count"] == 2
    assert values["request_prefill_time_seconds_sum"] == 3.0
    assert values["request_prefill_time_seconds_count"] == 1


def test_attempts_are_apart_and_one_that_begins_again_has_waited_once() -> None:
    watched = Watched()
    watched.note("queued", at=0.0)
    watched.note("queued", attempt=2, at=3.0)
    watched.note("context_begin", attempt=2, at=4.0)
    watched.note("context_begin", attempt=2, at=6.0)  # it was set back
    watched.note("aborted", at=7.0)
    watched.note("context_begin", at=8.0)
    watched.note("context_end", attempt=2, at=9.0)
    values = watched.values
    assert values["request_queue_time_seconds_count"] == 1
    assert values["request_queue_time_seconds_sum"] == 1.0
    assert values["request_prefill_time_seconds_sum"] == 3.0  # of the second beginning


def test_a_handoff_takes_from_the_first_pull_to_the_last() -> None:
    watched = Watched()
    for name, at in (("queued", 0.0), ("migration_begin", 2.0), ("pages_pulled", 2.5)):
        watched.note(name, at=at)
    watched.note("migration_end", at=3.25)
    assert watched.values["request_handoff_time_seconds_sum"] == 1.25
    assert watched.values["request_queue_time_seconds_count"] == 0


def test_moments_are_told_once_by_their_age() -> None:
    watched = Watched()
    assert watched.journal.marks() is None
    watched.note("queued", at=1.0)
    watched.note("pages_ready", at=2.0)  # of these there may be many
    watched.note("context_end", attempt=2, at=3.0)
    watched.now = 3.5
    a = TransferId("a")
    told = (Mark(a, 1, Moment.QUEUED, 2.5), Mark(a, 2, Moment.CONTEXT_END, 0.5))
    assert watched.journal.marks() == Marks(marks=told)
    assert watched.journal.marks() is None


def test_what_is_remembered_is_bounded() -> None:
    watched = Watched()
    for n in range(5000):
        watched.note("queued", f"t{n}", at=float(n))
    watched.note("context_begin", "t0", at=6000.0)
    watched.note("context_begin", "t4999", at=6000.0)
    assert watched.values["request_queue_time_seconds_count"] == 1
    assert watched.values["request_queue_time_seconds_sum"] == 1001.0
    marks = watched.journal.marks()
    assert marks is not None
    assert len(marks.marks) == 4096
