"""The handoff whole, over the real cores: exact answers and conserved pages, whatever is lost."""

import random

import pytest

from common.ids import Role
from launch.gateway.transfers import Generate
from tests.cluster import Cluster, Shape, expected, generate

SHAPES = {
    "one by one": Shape(),
    "two by two": Shape(prefills=2, decodes=2),
    "lossy": Shape(prefills=2, decodes=2, drop=0.1),
    "very lossy": Shape(drop=0.4),
    "no cache": Shape(caching=False, drop=0.05),
    "small pools": Shape(decodes=2, prefill_pages=24, decode_pages=20, drop=0.05),
    "colocated": Shape(prefills=0, decodes=2, decode_pages=24),
}


def workload(seed: int, shape: Shape, n: int) -> list[Generate]:
    """Prompts that share prefixes, of one token up to several chunks."""
    draw = random.Random(seed)
    longest = min(shape.prefill_pages, shape.decode_pages) * shape.page_tokens // 2
    stems = [[draw.randrange(1000) for _ in range(longest)] for _ in range(3)]
    requests: list[Generate] = []
    for i in range(n):
        stem = draw.choice(stems)[: draw.randrange(1, longest)]
        tail = [draw.randrange(1000) for _ in range(draw.choice((0, 1, 5)))]
        prompt = (stem + tail)[: longest - 1]
        requests.append(
            generate(f"r{i}", prompt, draw.randrange(1, 20), n=draw.choice((1, 1, 1, 3)))
        )
    return requests


def check_answers(cluster: Cluster, requests: list[Generate]) -> None:
    for request in requests:
        for sample in range(request.n):
            answer = cluster.answers.get((request.request, sample))
            assert answer == expected(request, sample), (request.request, sample)


def settle(cluster: Cluster) -> None:
    """Links heal; whatever was lost is found out; then everything is free."""
    cluster.lossy = False
    cluster.run(5.0)
    cluster.check_idle()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_every_answer_is_exact_and_every_page_comes_back(name: str, seed: int) -> None:
    shape = SHAPES[name]
    cluster = Cluster(shape, seed)
    cluster.run(0.1)
    requests = workload(seed, shape, 24)
    for i, request in enumerate(requests):
        cluster.at(i * 0.01, lambda r=request: cluster.submit(r))
    cluster.run(120.0, until=lambda: len(cluster.finished) == len(requests))
    assert not cluster.errors
    check_answers(cluster, requests)
    settle(cluster)


@pytest.mark.parametrize("seed", range(6))
def test_whoever_leaves_takes_nothing_from_the_others(seed: int) -> None:
    shape = Shape(prefills=2, decodes=2, prefill_pages=32, decode_pages=32, drop=0.05)
    cluster = Cluster(shape, seed)
    cluster.run(0.1)
    requests = workload(seed, shape, 40)
    stay = requests[::3]
    for i, request in enumerate(requests):
        cluster.at(i * 0.005, lambda r=request: cluster.submit(r))
        if request not in stay:
            leave = i * 0.005 + cluster.random.uniform(0, 0.3)
            cluster.at(leave, lambda r=request: cluster.quit(r.request))
    cluster.run(120.0, until=lambda: all(r.request in cluster.finished for r in stay))
    check_answers(cluster, stay)
    settle(cluster)


@pytest.mark.parametrize("victim", [Role.PREFILL, Role.DECODE])
@pytest.mark.parametrize("seed", range(6))
def test_a_dead_worker_loses_only_its_own_compute(victim: Role, seed: int) -> None:
    shape = Shape(prefills=2, decodes=2, drop=0.02)
    cluster = Cluster(shape, seed)
    cluster.run(0.1)
    requests = workload(seed, shape, 30)
    for i, request in enumerate(requests):
        cluster.at(i * 0.01, lambda r=request: cluster.submit(r))

    def kill_one() -> None:
        cluster.kill(cluster.random.choice(cluster.living(victim)))
        cluster.at(0.2, lambda: cluster.start(victim))

    for k in range(3):
        cluster.at(0.05 + 0.15 * k, kill_one)
    cluster.run(120.0, until=lambda: len(cluster.finished) == len(requests))
    assert not cluster.errors
    check_answers(cluster, requests)
    settle(cluster)


def test_the_second_turn_computes_only_what_is_new() -> None:
    cluster = Cluster(Shape(), seed=0)
    cluster.run(0.1)
    first = generate("first", list(range(40)), 21)
    cluster.submit(first)
    cluster.run(10.0, until=lambda: "first" in cluster.finished)
    cluster.run(1.0)  # snapshots tell the gateway what decode holds
    answer = expected(first, 0)
    second = generate("second", [*first.prompt, *answer, 7, 8, 9], 2)
    rows = cluster.rows
    cluster.submit(second)
    cluster.run(10.0, until=lambda: "second" in cluster.finished)
    check_answers(cluster, [second])
    # 40 + 20 tokens have KV, 60 of them in full pages of 4; the 21st answer token had none yet.
    assert cluster.cached[second.request] == 60
    assert cluster.rows - rows <= len(second.prompt) - 60 + 1


def test_a_shared_prefix_is_computed_and_moved_once() -> None:
    cluster = Cluster(Shape(prefill_pages=128, decode_pages=128), seed=0)
    cluster.run(0.1)
    prefix = list(range(80))
    requests = [generate(f"r{i}", [*prefix, 500 + i], 4) for i in range(16)]
    for request in requests:
        cluster.submit(request)
    cluster.run(10.0, until=lambda: len(cluster.finished) == 16)
    check_answers(cluster, requests)
    assert cluster.rows <= 80 + 16 * (1 + 3)
    assert cluster.pulled_pages <= 20 + 16
