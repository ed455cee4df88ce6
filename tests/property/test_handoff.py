"""The handoff whole, over the real cores and links: exact answers and conserved pages, whatever is
lost, torn, cut, slow, paused or killed."""

import pytest

from bench.simulate.cluster import Cluster
from bench.simulate.model import Wants, expected, generate
from bench.simulate.shape import FAIR, Shape, Weather
from bench.simulate.workload import full_house, workload
from common.ids import Role
from launch.gateway.transfers import Generate

TWO = Shape(prefills=2, decodes=2)
SMALL = Shape(decodes=2, prefill_pages=24, decode_pages=20)
TINY = Shape(prefill_pages=8, decode_pages=8)
EVERYTHING = Wants.ENDS | Wants.LOGPROBS | Wants.SCORES

CASES = {
    "one by one": (Shape(), FAIR),
    "two by two": (TWO, FAIR),
    "lossy": (TWO, Weather(drop=0.1, repeat=0.2)),
    "very lossy": (Shape(decodes=2), Weather(drop=0.4)),
    "no cache": (Shape(caching=False), Weather(drop=0.05)),
    "small pools": (SMALL, Weather(drop=0.05, slow=0.1)),
    "colocated": (Shape(prefills=0, decodes=2, decode_pages=24), Weather(drop=0.05)),
    "torn": (TWO, Weather(torn=0.2, slow=0.2)),
    "cut": (TWO, Weather(cut_every_s=0.1)),
    "little credit": (Shape(prefills=2, decodes=2, credit_tokens=4), Weather(drop=0.03)),
    "pages of one token": (
        Shape(page_tokens=1, prefill_pages=128, decode_pages=128),
        Weather(drop=0.05),
    ),
    "pages of sixteen": (
        Shape(page_tokens=16, prefill_pages=24, decode_pages=24, chunk_tokens=24, budget_tokens=64),
        Weather(drop=0.05),
    ),
}


def check_all(cluster: Cluster, requests: list[Generate], every_s: float = 0.01) -> None:
    """Every answer is whole and exact, and every page comes back."""
    cluster.submit(*requests, every_s=every_s)
    cluster.answer(requests)
    errors = [cluster.client(request).error for request in requests]
    assert errors == [None] * len(requests)
    cluster.settle()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(2))
def test_every_answer_is_exact_and_every_page_comes_back(name: str, seed: int) -> None:
    shape, weather = CASES[name]
    requests = workload(seed, shape, 16, wants=EVERYTHING)
    check_all(Cluster(shape, seed, weather), requests)


@pytest.mark.parametrize("seed", range(4))
def test_prompts_as_large_as_the_pool_pass_one_by_one(seed: int) -> None:
    check_all(Cluster(TINY, seed), full_house(seed, TINY, 16), every_s=0.0)


@pytest.mark.parametrize("seed", range(4))
def test_whoever_leaves_takes_nothing_from_the_others(seed: int) -> None:
    shape = Shape(prefills=2, decodes=2, prefill_pages=32, decode_pages=32)
    cluster = Cluster(shape, seed, Weather(drop=0.05))
    requests = workload(seed, shape, 30)
    cluster.submit(*requests, every_s=0.005)
    for i, request in enumerate(requests):
        if i % 3:
            leave = i * 0.005 + cluster.world.random.uniform(0, 0.3)
            cluster.clock.at(leave, lambda r=request: cluster.gateway.quit(r))
    cluster.answer(requests)
    cluster.settle()


@pytest.mark.parametrize("victim", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("seed", range(3))
def test_a_dead_worker_loses_only_its_own_compute(victim: Role, seed: int) -> None:
    cluster = Cluster(TWO, seed, Weather(drop=0.02))

    def kill_one() -> None:
        cluster.kill(cluster.world.random.choice(cluster.of(victim)))
        cluster.clock.at(0.2, lambda: cluster.start(victim))

    for k in range(3):
        cluster.clock.at(0.05 + 0.15 * k, kill_one)
    check_all(cluster, workload(seed, TWO, 24, wants=EVERYTHING))


def test_the_second_turn_computes_only_what_is_new() -> None:
    cluster = Cluster(Shape())
    first = generate("first", range(40), 21)
    cluster.submit(first)
    cluster.answer([first])
    cluster.run(1.0)  # snapshots tell the gateway what decode holds
    answer = expected(first, 0).tokens
    second = generate("second", [*first.prompt, *answer, 7, 8, 9], 2)
    rows = cluster.world.rows
    cluster.submit(second)
    cluster.answer([second])
    # 40 + 20 tokens have KV, 60 of them in full pages of 4; the 21st answer token had none yet.
    assert cluster.client(second).cached_tokens == 60
    assert cluster.world.rows - rows <= len(second.prompt) - 60 + 1


def test_a_shared_prefix_is_computed_and_moved_once() -> None:
    cluster = Cluster(Shape(prefill_pages=128, decode_pages=128))
    requests = [generate(f"r{i}", [*range(80), 500 + i], 4) for i in range(16)]
    cluster.submit(*requests)
    cluster.answer(requests)
    assert cluster.world.rows <= 80 + 16 * (1 + 3)
    assert cluster.world.pulled_pages <= 20 + 16
