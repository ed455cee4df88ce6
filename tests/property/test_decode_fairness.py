"""Random histories of the decode core in pools that are too small: it never stops while there is
something to compute, nobody is passed after its turn, the oldest gives way to nobody."""

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.engine.events import Launch, Note, Pull, Spill, TicketFinal
from common.ids import InstanceId
from common.kv.layout import pages_for
from common.messages import Accept, Accepted, Expect, Heartbeat, Listed, Phase, Refused
from decode.forecast import Future, page_passes
from decode.scheduler import turn
from tests.unit.decode.builders import Bench, Blind, G, H, P, ended, expect, handoff

END = 99
G2 = InstanceId("gateway-2")
LONGEST = 32
PLENTY = 1_000_000  # tokens of credit


@dataclass(frozen=True)
class Scenario:
    seed: int
    page_tokens: int
    more_pages: int  # than the longest request needs
    max_num_seqs: int
    chunk_tokens: int
    cache: bool
    blind: bool
    plan_ahead: bool
    n_requests: int
    host_pages: int


SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 2**32),
    page_tokens=st.sampled_from((1, 2, 4)),
    more_pages=st.integers(0, 16),
    max_num_seqs=st.integers(1, 6),
    chunk_tokens=st.integers(1, 12),
    cache=st.booleans(),
    blind=st.booleans(),
    plan_ahead=st.booleans(),
    n_requests=st.integers(1, 12),
    host_pages=st.sampled_from((0, 3, 12, 100)),
)


@dataclass
class Asked:
    request: Expect
    gateway: InstanceId
    first_turn: float  # that it could have had
    worst_turn: float
    begun: bool = False
    calls: Accept | None = None  # unanswered
    preempted: set[int] = field(default_factory=set[int])


class History:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed)
        self.n_pages = pages_for(LONGEST, scenario.page_tokens) + scenario.more_pages
        self.bench = Bench(
            n_pages=self.n_pages,
            page_tokens=scenario.page_tokens,
            max_num_seqs=scenario.max_num_seqs,
            max_num_batched_tokens=max(scenario.max_num_seqs, 12),
            max_model_len=LONGEST,
            max_waiting=12,
            chunk_tokens=scenario.chunk_tokens,
            cache=scenario.cache,
            peers=(G, G2, P),
            foresight=Blind() if scenario.blind else None,
            host_pages=scenario.host_pages,
            plan_ahead=scenario.plan_ahead,
        )
        self.live: dict[str, Asked] = {}  # by age
        self.dry: set[InstanceId] = set()  # gateways that give no credit
        self.over: list[Asked] = []
        self.pulls: list[Pull | Spill] = []
        self.n_asked = self.n_passes = 0

    # --- what happens ------------------------------------------------------------------------

    def ask(self) -> None:
        random = self.random
        self.n_asked += 1
        n_prompt = random.randrange(1, 20)
        prompt = tuple(random.choice((7, 7, 7, 8)) for _ in range(n_prompt))
        request = expect(
            prompt,
            transfer=f"t{self.n_asked}",
            samples=random.choice((1, 1, 1, 3)),
            prefill=random.choice((None, None, P)),
            max_tokens=random.randrange(1, LONGEST - n_prompt + 1),
            end=(END,),
            priority=random.choice((0, 0, 0, 3, -1)),
        )
        gateway = random.choice((G, G2))
        first_turn = turn(self.n_passes, 0, self.n_pages, request.priority)
        asked = Asked(request, gateway, first_turn, self.worst_turn(request))
        self.live[request.transfer] = asked
        self.bench.hear(request, sender=gateway)
        if self.bench.said(Refused):
            del self.live[request.transfer]
        else:
            assert self.bench.said(Accepted)
        self.look()

    def worst_turn(self, request: Expect) -> float:
        future = Future(len(request.prompt), request.params.max_tokens)
        volume = len(request.samples) * page_passes(future, self.scenario.page_tokens)
        return turn(self.n_passes, volume, self.n_pages, request.priority)

    def finish_pass(self) -> None:
        if self.bench.launched is None:
            return
        if self.random.random() < 0.02:
            self.bench.raised("raised")
        else:
            self.bench.done(
                *(END if self.random.random() < 0.1 else 7 for _ in self.bench.plan.draws)
            )
        self.look()

    def finish_passes(self) -> None:
        """What was planned ahead for one that has ended meanwhile."""
        while self.bench.launched:
            self.finish_pass()

    def hand_off(self) -> None:
        """One that decode has accepted arrives."""
        for name, asked in self.live.items():
            if asked.calls is not None:
                n_tokens, n_held = len(asked.request.prompt), len(asked.calls.held)
                pages = range(n_held, pages_for(n_tokens, self.scenario.page_tokens))
                tokens = (7,) * len(asked.request.samples)
                asked.calls = None
                self.bench.hear(
                    handoff(*pages, transfer=name, n_tokens=n_tokens, first=n_held, tokens=tokens),
                    sender=P,
                )
                self.look()
                return

    def finish_pull(self) -> None:
        """Of those to the host and back, a few fail."""
        if self.pulls:
            pull = self.pulls.pop(self.random.randrange(len(self.pulls)))
            of_host = isinstance(pull, Spill) or pull.peer == H
            ok = not of_host or self.random.random() < 0.9
            self.bench.take(TicketFinal(pull.ticket, ok, "" if ok else "torn"))
            self.look()

    def finish_pulls(self) -> None:
        while self.pulls:
            self.finish_pull()

    def abort(self) -> None:
        if self.live:
            self.over.append(self.live.pop(self.random.choice(list(self.live))))
            self.end()

    def end(self) -> None:
        while self.over:
            asked = self.over.pop()
            self.bench.hear(ended(asked.request.transfer), sender=asked.gateway)
            self.look()

    def give_credit(self, gateway: InstanceId, credit_tokens: int) -> None:
        (self.dry.discard if credit_tokens == PLENTY else self.dry.add)(gateway)
        rows = [
            Listed(a.request.transfer, 1, Phase.WAITING, ())
            for a in self.live.values()
            if a.gateway == gateway
        ]
        self.bench.hear(
            Heartbeat(transfers=tuple(rows), credit_tokens=credit_tokens), sender=gateway
        )
        self.look()

    # --- what must hold ----------------------------------------------------------------------

    def look(self) -> None:
        """At the last step's actions, in order; then at what is left undone."""
        self.n_passes += len(self.bench.did(Launch))
        self.pulls += [*self.bench.did(Spill), *self.bench.did(Pull)]
        begun: list[Asked] = []
        for accept in self.bench.said(Accept, P):
            self.live[accept.transfer].calls = accept
            begun.append(self.live[accept.transfer])
        for note in self.bench.did(Note):
            if note.name == "context_begin":
                begun.append(self.live[note.transfer])
            elif note.transfer in self.live:
                self.noted(note)
        self.began(begun)
        coming = self.pulls or any(a.calls for a in self.live.values())
        if self.live and not coming and not self.dry:
            assert self.bench.launched or self.over, "nothing runs"
        self.end()

    def noted(self, note: Note) -> None:
        asked = self.live[note.transfer]
        if note.name == "preempted":
            self.preempted(note.transfer, int(note.fields["sample"]))
        elif note.name == "resumed":
            asked.preempted.discard(int(note.fields["sample"]))
        elif note.name in ("decoding_end", "failed"):
            self.over.append(self.live.pop(note.transfer))

    def began(self, new: list[Asked]) -> None:
        """Whoever still waits has not been passed by one that came after its turn."""
        for asked in new:
            asked.begun = True
        waiting = [a for a in self.live.values() if not a.begun and a.gateway not in self.dry]
        for asked in new:
            assert all(asked.first_turn <= other.worst_turn for other in waiting)

    def preempted(self, name: str, sample: int) -> None:
        """Somebody older has pages, unless it is parked."""
        asked = self.live[name]
        asked.preempted.add(sample)
        if asked.gateway in self.dry:
            return
        names = list(self.live)
        older = [self.live[n] for n in names[: names.index(name)]]
        siblings = set(range(sample)) - asked.preempted
        assert siblings or any(o.begun for o in older)


def live_through(scenario: Scenario) -> None:
    h = History(scenario)
    while h.n_asked < scenario.n_requests:
        what = h.random.random()
        if what < 0.25:
            h.ask()
        elif what < 0.8:
            h.finish_pass()
        elif what < 0.86:
            h.hand_off()
        elif what < 0.9:
            h.finish_pull()
        elif what < 0.93:
            h.abort()
        else:
            h.give_credit(h.random.choice((G, G2)), h.random.choice((0, 2, PLENTY)))
    for gateway in (G, G2):
        h.give_credit(gateway, PLENTY)
    for _ in range(40 * LONGEST * scenario.n_requests):
        if not h.live:
            break
        h.finish_pass()
        h.hand_off()
        h.finish_pull()
    assert not h.live
    h.finish_passes()
    h.finish_pulls()
    assert h.bench.core.idle
    assert h.bench.pool.n_held == 0
    assert h.bench.host is None or h.bench.host.pool.n_held == 0


@settings(max_examples=150, deadline=None)
@given(SCENARIOS)
def test_a_random_history_ends(scenario: Scenario) -> None:
    live_through(scenario)


@pytest.mark.full
@pytest.mark.timeout(3600)
@settings(max_examples=10_000, deadline=None)
@given(SCENARIOS)
def test_ten_thousand_random_histories_end(scenario: Scenario) -> None:
    live_through(scenario)
