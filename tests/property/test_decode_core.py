"""The decode core in bad weather: whatever is lost, torn, cancelled or too small, the right tokens
arrive in order, every page read is what it should be, and nothing is held when all is over."""

from dataclasses import dataclass
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.decode.builders import Bench, Blind, G
from tests.unit.decode.prefill import Prefiller
from tests.unit.decode.real_prefill import RealPrefiller
from tests.unit.decode.world import Weather, World

STORM = Weather(loss=0.1, repeat=0.1, torn=0.05, raised=0.01, crash_every_s=2.0)
LONGEST = 64  # tokens of a request


@dataclass(frozen=True)
class Scenario:
    seed: int
    page_tokens: int = 4
    more_pages: int = 0  # than the longest request needs
    max_num_seqs: int = 4
    budget_tokens: int = 16
    chunk_tokens: int = 6
    max_waiting: int = 8
    cache: bool = True
    credit_tokens: int | None = None
    stormy: bool = False
    blind: bool = False
    plan_ahead: bool = True
    most_repeats: int = 1  # of a pass, where the next is not planned ahead
    host_pages: int = 0
    n_requests: int = 20


SCENARIOS = st.builds(
    Scenario,
    seed=st.integers(0, 2**32),
    page_tokens=st.sampled_from((1, 2, 4, 16)),
    more_pages=st.integers(0, 40),
    max_num_seqs=st.integers(1, 6),
    budget_tokens=st.integers(1, 24),
    chunk_tokens=st.integers(1, 12),
    max_waiting=st.sampled_from((2, 8, 50)),
    cache=st.booleans(),
    credit_tokens=st.sampled_from((None, 1, 3, 20)),
    stormy=st.booleans(),
    blind=st.booleans(),
    plan_ahead=st.booleans(),
    most_repeats=st.sampled_from((1, 3, 20)),
    host_pages=st.sampled_from((0, 2, 10, 60)),
)


def world(scenario: Scenario, *, real_prefill: bool = False) -> World:
    bench = Bench(
        n_pages=-(-LONGEST // scenario.page_tokens) + scenario.more_pages,
        page_tokens=scenario.page_tokens,
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.budget_tokens,
        max_model_len=LONGEST,
        max_waiting=scenario.max_waiting,
        chunk_tokens=scenario.chunk_tokens,
        cache=scenario.cache,
        peers=(G,),
        foresight=Blind() if scenario.blind else None,
        plan_ahead=scenario.plan_ahead,
        most_repeats=scenario.most_repeats,
        host_pages=scenario.host_pages,
    )
    weather = STORM if scenario.stormy else Weather()
    make_prefill = RealPrefiller if real_prefill else Prefiller
    made = World(bench, Random(scenario.seed), weather, make_prefill=make_prefill)
    made.gateway.credit_tokens = scenario.credit_tokens
    return made


def traffic(w: World, n_requests: int) -> None:
    """Prompts of 1 to 38 tokens, most of them with a prefix that others have; some cancelled."""
    random = w.random
    stems = [tuple(random.randrange(1, 40) for _ in range(30)) for _ in range(3)]
    at = 0.0
    for _ in range(n_requests):
        at += random.expovariate(20)
        tail = tuple(random.randrange(1, 40) for _ in range(random.randrange(1, 9)))
        prompt = random.choice(stems)[: random.randrange(31)] + tail
        n = random.choice((1, 1, 1, 2, 5))
        max_tokens = random.randrange(1, 25)
        local = random.random() < 0.3
        w.later(at, lambda p=prompt, n=n, m=max_tokens, b=local: w.gateway.ask(p, n, m, local=b))
        if random.random() < 1 / 6:
            w.later(at + random.expovariate(5), w.gateway.cancel)
    w.run(at)


def calm_down(w: World) -> None:
    """Nothing is lost any more: everything must end, in a bounded time, and leave nothing."""
    w.weather = Weather()
    w.run(120.0, until=lambda: not w.gateway.open)
    assert not w.gateway.open
    w.run(2.0)
    assert w.bench.core.idle
    assert w.bench.pool.n_held == 0
    assert w.bench.host is None or w.bench.host.pool.n_held == 0


@settings(max_examples=10, deadline=None)
@given(SCENARIOS)
@example(Scenario(seed=1, stormy=True, n_requests=100))
@example(Scenario(seed=2, stormy=True, n_requests=60, more_pages=20, max_num_seqs=6, blind=True))
@example(
    Scenario(
        seed=5587,
        max_num_seqs=1,
        budget_tokens=3,
        chunk_tokens=3,
        max_waiting=2,
        cache=False,
        stormy=True,
    )
)
@example(Scenario(seed=6, stormy=True, n_requests=60, more_pages=2, blind=True, host_pages=20))
def test_the_right_tokens_arrive_and_no_page_is_left(scenario: Scenario) -> None:
    w = world(scenario)
    traffic(w, scenario.n_requests)
    calm_down(w)


@settings(max_examples=6, deadline=None)
@given(SCENARIOS)
@example(Scenario(seed=4, stormy=True, n_requests=40, more_pages=20, max_num_seqs=6))
def test_so_do_they_with_the_prefill_sides_own_core(scenario: Scenario) -> None:
    w = world(scenario, real_prefill=True)
    traffic(w, scenario.n_requests)
    calm_down(w)
    assert all(prefill.idle for prefill in w.prefills.values())


def test_some_are_spilled_and_come_back() -> None:
    w = world(Scenario(seed=8, more_pages=12, max_num_seqs=6, blind=True, host_pages=40))
    traffic(w, 60)
    calm_down(w)
    assert w.n_spills > 2


def test_the_same_events_give_the_same_actions() -> None:
    def actions() -> list[str]:
        w = world(Scenario(seed=3, stormy=True))
        w.transcript = []
        traffic(w, 25)
        return w.transcript

    assert actions() == actions()
