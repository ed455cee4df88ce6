"""A draw is a function of its own row and parameters: neither batch nor shortcuts change it."""

import msgspec
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from common.engine.plan import Draw
from common.ids import TransferId
from common.params import SamplingParams
from common.sampling import sample

N_VOCAB = 130
tokens = st.integers(0, N_VOCAB - 1)
rules = st.builds(
    SamplingParams,
    max_tokens=st.just(50),
    seed=st.integers(0, 2**63 - 1),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 4.0]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    top_k=st.sampled_from([0, 1, 5, N_VOCAB - 1, N_VOCAB, 1000]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    logit_bias=st.sampled_from([(), ((3, 4.0),)]),
    min_tokens=st.sampled_from([0, 2]),
    end_token_ids=st.just((2,)),
    logprobs=st.sampled_from([None, 0, 3]),
)
draws = st.builds(
    Draw,
    transfer=st.just(TransferId("t")),
    attempt=st.just(0),
    sample=st.integers(0, 3),
    index=st.integers(0, 4),
    row=st.just(0),
    params=rules,
    prompt=st.lists(tokens, max_size=5).map(tuple),
    outputs=st.lists(tokens, max_size=5).map(tuple),
)


def logits(n: int, seed: int) -> Tensor:
    """Every second seed gives ties."""
    z = torch.randn(n, N_VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    return z.round() if seed % 2 else z


@given(st.lists(draws, min_size=1, max_size=6), st.integers(0, 999))
@settings(max_examples=100, deadline=None)
def test_alone_and_in_any_batch_are_bitwise_the_same(many: list[Draw], seed: int) -> None:
    z = logits(len(many), seed)
    together = sample(z, many)
    assert together == tuple(sample(z[b : b + 1], [one])[0] for b, one in enumerate(many))
    assert together == sample(z.flip(0), many[::-1])[::-1]


@given(draws, st.integers(0, 999))
@settings(max_examples=100, deadline=None)
def test_greedy_is_top_k_one(one: Draw, seed: int) -> None:
    z = logits(1, seed)
    cold = msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, temperature=0.0))
    narrow = msgspec.structs.replace(
        one, params=msgspec.structs.replace(one.params, temperature=1.0, top_k=1)
    )
    assert sample(z, [cold]) == sample(z, [narrow])


@given(draws, st.integers(0, 999))
@settings(max_examples=50, deadline=None)
def test_a_truncation_that_removes_nothing_changes_nothing(one: Draw, seed: int) -> None:
    z = logits(1, seed)
    z[0, 7] = -1e4  # weighs nothing: what is left to top_k to remove
    plain = msgspec.structs.replace(one.params, top_k=0, top_p=1.0, min_p=0.0)
    wide = msgspec.structs.replace(plain, top_k=N_VOCAB - 1, top_p=1 - 2**-53, min_p=1e-300)
    assert sample(z, [msgspec.structs.replace(one, params=plain)]) == sample(
        z, [msgspec.structs.replace(one, params=wide)]
    )


def test_neither_the_threads_nor_the_place_in_memory_changes_a_draw() -> None:
    z = torch.randn(3, 49_157, generator=torch.Generator().manual_seed(1)) * 3
    params = SamplingParams(max_tokens=9, seed=5, top_p=0.97, logprobs=4)
    one = Draw(
        transfer=TransferId("t"),
        attempt=0,
        sample=0,
        index=0,
        row=0,
        params=params,
        prompt=(),
        outputs=(),
    )
    many = [msgspec.structs.replace(one, index=i) for i in range(3)]
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = sample(z, many)
        torch.set_num_threads(2)
        assert sample(z, many) == single
        assert sample(z[1:], many[1:]) == single[1:]
    finally:
        torch.set_num_threads(n_threads)
