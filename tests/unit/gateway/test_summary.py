"""The arithmetic of `GET /status`: percentiles, rates, attainment, sums, and where requests are."""

import math

import pytest

from common.engine.events import Note, PeerDown, PeerUp, Received
from common.errors import Overloaded
from common.ids import InstanceId, Role, TransferId
from common.messages import Heartbeat, Marks, Metrics, Snapshot
from common.metrics import Totals
from common.moments import Mark, Moment
from common.params import SamplingParams
from launch.gateway.events import Admitted, Rejected
from launch.gateway.figures import NO_VALUES, bucket_percentiles, percentiles, sampled
from launch.gateway.history import SHOWN, History, Outcome
from launch.gateway.own_part import judged, part_of, request_status
from launch.gateway.parts import Elsewhere
from launch.gateway.status import Load, Pages, Status
from launch.gateway.summary import Server, status, work_rates, worker_statuses
from launch.gateway.transfers import Generate, RequestId, Slo
from launch.gateway.views import WorkerView
from launch.supervise import LocalWorker
from tests.unit.gateway.builders import hello, snapshot

P, D = InstanceId("prefill-1"), InstanceId("decode-1")
UNIX_S = 1.7e9
SLO = Slo(ttft_s=0.2, tpot_s=0.05)


class Watched:
    """A history, a clock that the test turns, and counters that it sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tokens = 0
        self.failures: dict[str, int] = {}
        self.set_back_s = 0.0  # the clock on the wall, since the beginning
        self.history = History(
            self._totals, lambda: self.now, lambda: UNIX_S + self.now - self.set_back_s
        )
        self.views: list[WorkerView] = []
        self.elsewhere = Elsewhere([], {})

    def _totals(self) -> Totals:
        return Totals(0, self.tokens, {}, dict(self.failures), ())

    def up(self, instance: InstanceId, told: Snapshot) -> None:
        self.history.heard(PeerUp(hello(instance)))
        self.views.append(WorkerView(hello(instance), told))

    def submit(self, name: str, *, at: float, slo: Slo = SLO) -> None:
        self.now = at
        request = RequestId(name)
        params = SamplingParams(max_tokens=20, seed=1)
        self.history.submitted(Generate(request=request, prompt=(1,), n=1, params=params, slo=slo))
        self.note("received", name, at=at, request=name)

    def note(self, event: str, transfer: str, *, at: float, **fields: int | str) -> None:
        self.now = at
        self.history.note(Note(TransferId(transfer), 1, event, dict(fields)))

    def mark(self, sender: InstanceId, transfer: str, attempt: int = 1, **ages: float) -> None:
        marks = [Mark(TransferId(transfer), attempt, Moment(m), age) for m, age in ages.items()]
        self.history.heard(Received(sender, Marks(marks=tuple(marks))))

    def status(self, after: float = math.inf) -> Status:
        server = Server(
            unix_s=1.0,
            model="m",
            ready=True,
            draining=False,
            versions={},
            slo=SLO,
        )
        own = part_of(self.history, 1, self.now, after)
        workers = worker_statuses(self.views, self.history, self.now)
        return status(server, workers, own, self.elsewhere, after)


def test_percentiles_are_values_that_were_there() -> None:
    told = percentiles([sampled([*map(float, range(100, 0, -1)), None], 100)])
    assert (told.n, told.p50, told.p90, told.p99) == (100, 50.0, 90.0, 99.0)
    assert percentiles([sampled([7.0], 9)]).p99 == 7.0
    two = percentiles([sampled([2.0, 1.0], 9)])
    assert (two.p50, two.p90) == (1.0, 2.0)
    assert percentiles([sampled([None], 9), NO_VALUES]).p50 is None


def test_percentiles_of_several_are_those_of_all_their_values() -> None:
    """Not some mean of theirs: here nine of ten values are one gateway's."""
    busy, idle = sampled(map(float, range(90)), 100), sampled(map(float, range(1000, 1010)), 100)
    told = percentiles([idle, busy])
    assert (told.n, told.p50, told.p90, told.p99) == (100, 49.0, 89.0, 1008.0)


def test_of_many_values_as_many_are_kept_as_percentiles_need() -> None:
    kept = sampled(map(float, range(100_000)), 1000)
    assert (kept.n, len(kept.values)) == (100_000, 1000)
    few = sampled([200_000.0] * 5_000, 1000)
    told = percentiles([few, kept])
    assert told.n == 105_000
    assert told.p50 == pytest.approx(52_500, abs=100)
    assert told.p90 == pytest.approx(94_500, abs=100)
    assert told.p99 == 200_000


def test_percentiles_of_buckets_are_of_what_came_between_two_readings() -> None:
    first = ((0.01, 100), (0.1, 100), (math.inf, 100))
    told = bucket_percentiles(first, ((0.01, 110), (0.1, 120), (math.inf, 120)))
    assert told.n == 20
    assert told.p50 == pytest.approx(0.01)  # the tenth of ten in the first bucket
    assert told.p90 == pytest.approx(0.01 + 0.09 * 0.8)
    assert bucket_percentiles(first, first).n == 0
    beyond = bucket_percentiles((), ((0.01, 0), (0.1, 0), (math.inf, 3)))
    assert beyond.p50 == 0.1


def test_attainment_judges_what_was_owed() -> None:
    met = Outcome(1.0, 0.1, 0.01, 1.0, SLO)
    slow = Outcome(1.0, 0.1, 0.06, 1.0, SLO)
    late_and_short = Outcome(1.0, 0.3, None, 1.0, SLO)
    owed_nothing = Outcome(1.0, 9.0, 9.0, 9.0, Slo())
    assert judged([met, slow, late_and_short, owed_nothing]) == ((3, 1), (3, 2), (2, 1))
    watched = Watched()
    assert (watched.status().slo.judged, watched.status().slo.met) == (0, None)
    watched.history.outcomes += [met, slow, late_and_short, owed_nothing]
    watched.now = 61.0
    told = watched.status().slo
    assert (told.judged, told.met) == (3, pytest.approx(1 / 3))
    assert (told.ttft_met, told.tpot_met) == (pytest.approx(2 / 3), 0.5)
    assert (told.ttft_s, told.tpot_s) == (0.2, 0.05)


def test_rates_of_a_worker_are_of_its_last_seconds() -> None:
    def told(tokens: float, seconds: float) -> dict[str, float]:
        return {"engine_step_tokens_total": tokens, "engine_step_seconds_total": seconds}

    counters = [(80.0, told(0, 0)), (95.0, told(1000, 10.0)), (99.0, told(1400, 12.0))]
    assert work_rates(counters, 100.0) == (100.0, 0.5)
    assert work_rates(counters[:1], 100.0) == (None, None)


def test_nothing_of_a_request_is_later_than_its_end() -> None:
    """An answer of one token has ended before the worker tells that it decodes."""
    watched = Watched()
    watched.up(P, snapshot())
    watched.up(D, snapshot())
    watched.submit("a", at=100.0)
    watched.note("routed", "a", at=100.25, decision="remote", reason="price", prefill=P, decode=D)
    watched.history.answered(Admitted(RequestId("a")))
    watched.now = 103.0
    watched.mark(D, "a", decoding_begin=0.5)
    watched.note("finished", "a", at=102.0, request="a", tokens=1, longest=1, finish="length")
    (told,) = watched.status().requests
    assert (told.decode_began_s, told.ended_s) == (2.0, 2.0)


def test_a_request_is_followed_through_the_pools() -> None:
    watched = Watched()
    watched.up(P, snapshot())
    watched.up(D, snapshot())
    history = watched.history

    def shown() -> tuple[str, float | None]:
        (told,) = watched.status().requests
        return told.state, told.ended_s

    watched.submit("a", at=100.0)
    watched.note("routed", "a", at=100.25, decision="remote", reason="price", prefill=P, decode=D)
    assert shown() == ("queued", None)
    watched.now = 101.0
    watched.mark(P, "a", queued=0.75, context_begin=0.5)
    assert shown() == ("prefill", None)
    history.answered(Admitted(RequestId("a")))
    watched.note("first_token", "a", at=102.0, sample=0)
    assert shown() == ("transfer", None)
    watched.now = 103.0
    watched.mark(D, "a", migration_begin=1.5, migration_end=0.75, decoding_begin=0.5, preempted=0.1)
    assert shown() == ("decode", None)
    watched.note("finished", "a", at=106.0, request="a", tokens=5, longest=5, finish="length")
    document = watched.status()
    (told,) = document.requests
    assert (told.state, told.output_tokens, told.preemptions) == ("length", 5, 1)
    assert (told.prefill, told.decode) == ("prefill-prefill-", "decode-decode-1")
    assert (told.routed_s, told.prefill_began_s, told.first_token_s) == (0.25, 0.5, 2.0)
    assert (told.transfer_began_s, told.transfer_ended_s) == (1.5, 2.25)
    assert (told.decode_began_s, told.ended_s, told.tpot_s) == (2.5, 6.0, 1.0)
    assert (document.handoff.seconds.n, document.handoff.seconds.p50) == (1, 0.75)
    assert document.latency.ttft_s.p50 == 2.0
    assert (document.slo.judged, document.slo.met) == (1, 0.0)
    watched.now = 170.0
    document = watched.status()
    assert (document.latency.ttft_s.n, document.handoff.seconds.n) == (0, 0)  # a minute ago
    assert len(document.requests) == 1


def test_a_new_attempt_forgets_the_times_of_the_one_before() -> None:
    watched = Watched()
    watched.submit("a", at=100.0)
    watched.note("routed", "a", at=100.0, decision="remote", reason="price", prefill=P, decode=D)
    watched.now = 101.0
    watched.mark(P, "a", context_begin=0.5)
    watched.note("failed", "a", at=101.0, detail="lost")
    watched.note("routed", "a", at=102.0, decision="local", reason="price", decode=D)
    watched.mark(P, "a", context_end=0.0)
    (told,) = watched.status().requests
    assert (told.attempts, told.state, told.prefill_began_s) == (2, "queued", None)
    watched.mark(D, "a", attempt=2, context_begin=0.0)
    (told,) = watched.status().requests
    assert (told.state, told.prefill, told.prefill_began_s) == ("prefill", "decode-1", 2.0)


def test_a_request_that_is_split_ends_with_its_last_part() -> None:
    watched = Watched()
    watched.submit("a", at=100.0)
    watched.note("routed", "b", at=101.0, decision="local", reason="cost", decode=D)
    watched.note("first_token", "a", at=101.0, sample=0)
    watched.note("finished", "b", at=103.0, request="a", tokens=3, longest=3, finish="stop")
    (told,) = watched.status().requests
    assert (told.state, told.attempts, told.ended_s, told.tpot_s) == ("stop", 0, 3.0, 1.0)
    assert not watched.history.live


def test_who_is_refused_is_told_apart_from_who_is_given_up() -> None:
    watched = Watched()
    full = Overloaded("full", retry_after_s=1.0)
    watched.submit("a", at=100.0)
    watched.history.answered(Rejected(RequestId("a"), full))
    watched.submit("b", at=101.0)
    watched.history.answered(Admitted(RequestId("b")))
    watched.history.answered(Rejected(RequestId("b"), full))
    watched.submit("c", at=102.0)
    watched.note("aborted", "c", at=103.0, request="c", tokens=2, longest=2, finish="stop")
    assert [r.state for r in watched.status().requests] == ["aborted", "failed", "refused"]
    assert watched.status().latency.e2e_s.n == 0  # none of them was answered


def test_what_is_remembered_is_bounded() -> None:
    watched = Watched()
    for n in range(3000):
        watched.submit(f"r{n}", at=100.0)
        watched.note("finished", f"r{n}", at=100.0, request="a", tokens=1, longest=1, finish="stop")
    told = watched.status().requests
    assert [one.id for one in told[:2]] == ["r2999", "r2998"]
    assert len(told) == SHOWN
    watched.mark(D, "r0", context_begin=0.0)  # of one that is forgotten
    for _ in range(500):
        watched.now += 1
        watched.history.sample()
    assert len(watched.history.samples) < 100


def test_workers_and_pools() -> None:
    watched = Watched()
    history = watched.history
    local = [
        LocalWorker("prefill-0", Role.PREFILL, P, 11, joined=True, restarts=2, trouble=""),
        LocalWorker("decode-0", Role.DECODE, None, None, joined=False, restarts=0, trouble=""),
        LocalWorker("decode-1", Role.DECODE, D, None, joined=True, restarts=1, trouble="signal 9"),
        LocalWorker(
            "decode-2", Role.DECODE, InstanceId("x"), 12, joined=True, restarts=0, trouble=""
        ),
    ]
    history.local_workers = lambda: local
    told = snapshot(busy=3, queued_tokens=40)
    watched.up(P, told)
    watched.up(InstanceId("decode-7"), told)
    watched.now = 104.0
    history.heard(Received(P, Heartbeat(transfers=())))
    history.heard(Received(P, Metrics(values=(("process_resident_memory_bytes", 4096.0),))))
    watched.now = 105.0
    document = watched.status()
    assert [(w.name, w.state, w.pid, w.restarts) for w in document.workers] == [
        ("prefill-0", "up", 11, 2),
        ("decode-0", "starting", None, 0),
        ("decode-1", "restarting", None, 1),
        ("decode-2", "lost", 12, 0),
        ("decode-decode-7", "up", None, None),
    ]
    first = document.workers[0]
    assert (first.uptime_s, first.heartbeat_age_s, first.memory_bytes) == (5.0, 1.0, 4096)
    assert (first.running, first.queued_tokens) == (3, 40)
    pool = document.pools["decode"]
    assert (pool.up, pool.workers, pool.running, pool.restarts) == (1, 4, 3, 1)
    assert pool.pages == Pages(total=100, held=0, cached=0, free=100)
    history.heard(PeerDown(P))
    watched.views.pop(0)
    assert watched.status().workers[0].state == "lost"


def test_counters_are_those_of_the_window() -> None:
    watched = Watched()
    for second in range(90):
        watched.now = 100.0 + second
        watched.tokens = 10 * second
        watched.failures = {"429": second // 45, "400": 7}
        watched.history.sample()
    document = watched.status()
    assert document.window_s == pytest.approx(60.0)
    assert document.rates.output_tokens_per_s == pytest.approx(10.0)
    assert document.rates.failures_per_s == pytest.approx(1 / 60)
    assert document.failures == {"429": 1}
    assert document.failures_total == {"429": 1, "400": 7}


def test_a_series_goes_on_when_the_clock_is_set_back() -> None:
    watched = Watched()
    for n in range(6):
        watched.now += 1.0
        if n == 4:
            watched.set_back_s = 2.5
        watched.history.sample()
    times = [point.unix_s - UNIX_S for point in watched.status(after=0.0).series]
    assert times == [102.0, 102.5, 103.5]


def test_a_point_of_the_series_is_what_a_second_brought() -> None:
    watched = Watched()
    watched.up(P, snapshot())
    watched.history.heard(Received(P, snapshot(busy=2)))
    watched.history.sample()
    watched.submit("a", at=100.0)
    watched.note("routed", "a", at=100.0, decision="local", reason="flag", decode=P)
    watched.note("first_token", "a", at=100.5, sample=0)
    watched.note("finished", "a", at=101.5, request="a", tokens=3, longest=3, finish="stop")
    watched.tokens = 60
    watched.now = 102.0
    watched.history.sample()
    watched.now = 102.5
    watched.history.sample()  # too early for another
    watched.now = 112.0
    watched.history.sample()
    one, two = watched.status(after=0.0).series
    assert one.output_tokens_per_s == 30.0
    assert (one.ttft_s.p50, one.tpot_s.p50) == (0.5, 0.5)
    assert one.workers == {
        "prefill-prefill-": Load(held=0, cached=0, total=100, running=2, waiting=0)
    }
    assert (two.output_tokens_per_s, two.ttft_s.n) == (0.0, 0)
    assert watched.status(after=one.unix_s).series == ([two] if two.unix_s > one.unix_s else [])
    assert watched.status().series == []


def test_names_outlive_their_workers() -> None:
    watched = Watched()
    watched.history.local_workers = lambda: [
        LocalWorker("decode-0", Role.DECODE, D, 1, joined=True, restarts=0, trouble="")
    ]
    watched.up(D, snapshot())
    watched.history.local_workers = tuple
    watched.history.heard(PeerDown(D))
    watched.submit("a", at=100.0)
    watched.note("routed", "a", at=100.0, decision="local", reason="flag", decode=D)
    record = watched.history.live[RequestId("a")]
    assert request_status(record, watched.history.names).decode == "decode-0"
