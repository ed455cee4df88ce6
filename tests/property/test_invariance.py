"""Law 3 on a small model of SmolLM2's shape: whatever happens, the same bits."""

import functools
import random
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from common.kernels import ops
from common.kernels.matrix import prepare
from common.model.llama import Llama
from common.model.packing import Use, packed_layout
from common.model.rope import cos_sin_table
from common.model.spec import Family, ModelSpec, NoScaling
from tests.property.invariance import World

MAX_TOKENS = 400
SPEC = ModelSpec(
    family=Family.LLAMA,
    hidden_size=144,
    n_layers=2,
    n_heads=9,
    n_kv_heads=3,
    head_dim=64,
    intermediate_size=400,
    vocab_size=301,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
    rope_scaling=NoScaling(),
    max_position=MAX_TOKENS,
    tied_embeddings=True,
    qkv_bias=True,
    o_bias=False,
    mlp_bias=False,
    qk_norm=True,
    sliding_window=None,
    native_dtype="float32",
)
STEM = random.Random(0).choices(range(SPEC.vocab_size), k=MAX_TOKENS)
LENGTHS = [1, 2, 15, 16, 17, 64, 127, 128, 129, 256, 257, 300, 400]
CHUNKS = [1, 1, 1, 2, 3, 16, 17, 60, 128, 300]


@functools.cache
def small_model() -> Llama:
    generator = torch.Generator().manual_seed(0)

    def normal(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = torch.randn(shape, generator=generator)
        return 1 + values / 4 if name.endswith("norm") else values * shape[-1] ** -0.5

    tensors = {
        packed.name: prepare(normal(packed.name, packed.shape), gated=packed.use is Use.GATED)
        if packed.use in (Use.MATRIX, Use.GATED)
        else normal(packed.name, packed.shape)
        for packed in packed_layout(SPEC)
    }
    return Llama(SPEC, tensors, cos_sin_table(SPEC, MAX_TOKENS))


class AnyOrder(RuleBasedStateMachine):
    @initialize(page_tokens=st.sampled_from([1, 16, 64]), rng=st.randoms())
    def an_empty_pool(self, page_tokens: int, rng: random.Random) -> None:
        self.world = World(small_model(), page_tokens, 6 * MAX_TOKENS // page_tokens, rng)

    @precondition(lambda self: len(self.world.running) < 6)
    @rule(length=st.sampled_from(LENGTHS), shared=st.sampled_from(LENGTHS), tail=st.integers(0, 99))
    def start(self, length: int, shared: int, tail: int) -> None:
        """Texts begin alike."""
        tokens = STEM[: min(length, shared)]
        tokens += random.Random(tail).choices(range(SPEC.vocab_size), k=length - len(tokens))
        self.world.start(tokens)

    @precondition(lambda self: any(s.left for s in self.world.running))
    @rule(data=st.data(), threads=st.sampled_from([1, 2]))
    def step(self, data: st.DataObject, threads: int) -> None:
        left = [s for s in self.world.running if s.left]
        some = data.draw(st.permutations(left))[: data.draw(st.integers(1, len(left)))]
        sizes = data.draw(st.lists(st.sampled_from(CHUNKS), min_size=len(some), max_size=len(some)))
        self.world.step([(s, min(n, s.left)) for s, n in zip(some, sizes, strict=True)], threads)

    @precondition(lambda self: self.world.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.world.preempt(data.draw(st.sampled_from(self.world.running)))

    @precondition(lambda self: any(not s.left for s in self.world.running))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.world.finish(data.draw(st.sampled_from([s for s in self.world.running if not s.left])))

    def teardown(self) -> None:
        self.world.check_free_pages()


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    ops.set_threads(before)


@pytest.mark.usefixtures("threads")
class TestAnyOrder(AnyOrder.TestCase):
    settings = settings(max_examples=20, stateful_step_count=15, deadline=None)
