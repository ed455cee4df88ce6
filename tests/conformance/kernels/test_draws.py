"""Draws by the C++ kernels against those in torch: the same tokens, whatever the rules."""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from common.engine.plan import Draw
from common.ids import TransferId
from common.kernels import ops
from common.kernels.cpu import native
from common.params import SamplingParams
from common.sampling import _draw, _draw_natively, sample
from tests.conformance.kernels.conftest import paths

pytestmark = [
    pytest.mark.skipif(not native.available(), reason=native.why_not()),
    pytest.mark.usefixtures("isa", "threads"),
]


@pytest.fixture(params=paths()[1:])
def isa(request: pytest.FixtureRequest) -> Iterator[None]:
    native.lib.set_isa(request.param)
    yield
    native.lib.set_isa(native.lib.best_isa())


def rules(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=1,
        seed=rng.randrange(2**63),
        temperature=rng.choice([5e-324, 0.01, 0.3, 0.8, 1.0, 1.7, 1e9]),
        top_p=rng.choice([1.0, 1.0, 1 - 2**-53, 0.999, 0.95, 0.5, 1e-9]),
        top_k=rng.choice([0, 0, 1, 7, 100, 4000, 10**9]),
        min_p=rng.choice([0.0, 0.0, 1e-300, 1e-4, 0.05, 1.0]),
    )


def draw(params: SamplingParams) -> Draw:
    return Draw(
        transfer=TransferId("t"), attempt=0, sample=0, index=0, row=0, params=params, prompt=(),
        outputs=(),
    )  # fmt: skip


def logits(rng: random.Random, n_vocab: int) -> Tensor:
    """Peaked or flat, with ties or without, with masked tokens or without."""
    generator = torch.Generator().manual_seed(rng.randrange(2**60))
    z = torch.randn(n_vocab, generator=generator) * rng.choice([0.0, 0.1, 2.0, 5.0, 30.0])
    if rng.random() < 0.3:
        z = z.round()
    if rng.random() < 0.3:
        z[torch.rand(n_vocab, generator=generator) < 0.5] = -torch.inf
    z[rng.randrange(n_vocab)] = 1.0
    return z


@pytest.mark.parametrize("n_vocab", [1, 2, 7, 64, 513, 3000, 49152])
def test_any_rules(n_vocab: int) -> None:
    rng = random.Random(n_vocab)
    for threads in (1, 2, 3):
        ops.set_threads(threads)
        rows = [logits(rng, n_vocab) for _ in range(20 if n_vocab > 10000 else 60)]
        draws = [draw(rules(rng)) for _ in rows]
        assert _draw_natively(rows, draws) == _draw(torch.stack(rows), draws)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_logits_that_have_no_finite_maximum(bad: float) -> None:
    z = torch.zeros(3, 100)
    z[1, 50] = bad
    with pytest.raises(ArithmeticError):
        sample(z, [draw(SamplingParams(max_tokens=1, seed=0))] * 3)
    with pytest.raises(ArithmeticError):
        sample(torch.full((1, 100), -torch.inf), [draw(SamplingParams(max_tokens=1, seed=0))])
