"""The decode core in bad weather: whatever is lost, torn, cancelled or too small, the right tokens
arrive in order, every page read is what it should be, and nothing is held when all is over."""

from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.decode.builders import Bench, G
from tests.unit.decode.world import Weather, World

STORM = Weather(loss=0.1, repeat=0.1, torn=0.05, raised=0.01, crash_every_s=2.0)


def traffic(world: World, n_requests: int) -> None:
    """Requests with shared prefixes of all lengths, a sixth of them cancelled."""
    random = world.random
    bench = world.bench
    stems = [tuple(random.randrange(1, 40) for _ in range(40)) for _ in range(3)]
    at = 0.0
    for _ in range(n_requests):
        at += random.expovariate(20)
        stem = random.choice(stems)
        prompt = (*stem[: random.randrange(31)], *(random.randrange(1, 40) for _ in range(8)))
        prompt = prompt[-random.randrange(1, len(prompt) + 1) :] if random.random() < 0.2 else prompt
        room = bench.pool.n_pages * bench.page_tokens - len(prompt) + 1
        max_tokens = min(room, random.randrange(1, 25))
        n = random.choice((1, 1, 1, 2, 5))
        local = random.random() < 0.3
        world.later(at, lambda p=prompt, n=n, m=max_tokens, b=local: world.gateway.ask(p, n, m, local=b))
        if random.random() < 1 / 6:
            world.later(at + random.expovariate(5), world.gateway.cancel)
    world.run(at)


def calm_down(world: World) -> None:
    """Nothing is lost any more: everything must end, in a bounded time, and leave nothing."""
    world.weather = Weather()
    world.run(300.0, until=lambda: not world.gateway.open)
    assert not world.gateway.open
    world.run(2.0)
    assert world.bench.core.idle
    assert world.bench.pool.n_held == 0


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    page_tokens=st.sampled_from((1, 2, 4, 16)),
    n_pages=st.integers(0, 40),
    max_num_seqs=st.integers(1, 6),
    budget=st.integers(1, 24),
    chunk_tokens=st.integers(1, 12),
    cache=st.booleans(),
    credit=st.sampled_from((None, 3, 20)),
    stormy=st.booleans(),
)
def test_right_tokens_and_no_page_left(
    seed, page_tokens, n_pages, max_num_seqs, budget, chunk_tokens, cache, credit, stormy
) -> None:
    bench = Bench(
        n_pages=-(-64 // page_tokens) + n_pages,
        page_tokens=page_tokens,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=64,
        chunk_tokens=chunk_tokens,
        cache=cache,
        peers=(G,),
    )
    world = World(bench, Random(seed), STORM if stormy else Weather())
    world.gateway.credit_tokens = credit
    traffic(world, 30)
    calm_down(world)
