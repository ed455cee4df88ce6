"""Law 3 on the default model, with its real weights and their outliers."""

import random
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from common.kernels import ops
from common.model.llama import Llama
from common.model.load import load_model
from tests.property.invariance import World

MAX_TOKENS = 150
CHUNKS = [1, 6, 16, 60, 130]


@pytest.fixture(scope="module")
def model(default_model: Path) -> Llama:
    return load_model(default_model, torch.float32, None, MAX_TOKENS).model


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    ops.set_threads(before)


@settings(
    max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_same_bits_in_any_order(model: Llama, seed: int) -> None:
    rng = random.Random(seed)
    world = World(model, 16, 4 * MAX_TOKENS // 16, rng)
    stem = rng.choices(range(model.spec.vocab_size), k=40)
    for length in (rng.randint(129, MAX_TOKENS), rng.randint(41, 100), rng.randint(1, 40)):
        own = rng.choices(range(model.spec.vocab_size), k=max(0, length - len(stem)))
        world.start(stem[:length] + own)
        victim = world.running[0]
        world.step([(s, min(rng.choice(CHUNKS), s.left)) for s in world.running if s.left], 1)
    world.preempt(victim)
    while left := [s for s in world.running if s.left]:
        some = rng.sample(left, rng.randint(1, len(left)))
        world.step([(s, min(rng.choice(CHUNKS), s.left)) for s in some], rng.choice([1, 2]))
    for sequence in list(world.running):
        world.finish(sequence)
    world.check_free_pages()
