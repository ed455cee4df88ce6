"""Draws follow the exact distribution, which is worked out here in another way: by sorting."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from common.engine.plan import Draw
from common.ids import TransferId
from common.params import SamplingParams
from common.sampling import _invert, sample, uniform_bits

N_DRAWS = 20_000
N_VOCAB = 60


def exact(logits_V: NDArray[np.float64], params: SamplingParams) -> NDArray[np.float64]:
    """Probabilities: temperature, then min_p, top_k and top_p on a full sort."""
    p = np.exp((logits_V - logits_V.max()) / params.temperature)
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if params.top_k:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= params.top_p]] = 0
    return p / p.sum()


@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 2.5},
        {"top_k": 12},
        {"top_p": 0.8},
        {"min_p": 0.1},
        {"temperature": 1.4, "min_p": 0.02, "top_k": 40, "top_p": 0.95},
    ],
    ids=str,
)
def test_draws_pass_a_chi_square_test(rules: dict[str, float]) -> None:
    logits_V = torch.randn(N_VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    params = SamplingParams(max_tokens=1, seed=11, **rules)  # pyright: ignore[reportArgumentType]
    draws = [
        Draw(
            transfer=TransferId("t"),
            attempt=0,
            sample=i % 4,
            index=i // 4,
            row=0,
            params=params,
            prompt=(),
            outputs=(),
        )
        for i in range(N_DRAWS)
    ]
    drawn = sample(logits_V.expand(N_DRAWS, -1), draws)
    counts = np.bincount([d.token for d in drawn], minlength=N_VOCAB)
    expected = exact(logits_V.double().numpy(), params) * N_DRAWS
    assert not counts[expected == 0].any()
    likely = expected >= 5  # where the test holds; the others are one class together
    rest = (counts[~likely].sum(), expected[~likely].sum())
    f_observed = np.append(counts[likely], rest[0]) if rest[1] >= 5 else counts[likely]
    f_expected = np.append(expected[likely], rest[1]) if rest[1] >= 5 else expected[likely]
    result = chisquare(f_observed, f_expected * f_observed.sum() / f_expected.sum())
    assert result.pvalue > 0.001


def test_uniforms_are_uniform_over_seeds_samples_and_indices() -> None:
    for keys in (
        [(n, 0, 0) for n in range(N_DRAWS)],
        [(0, n, 0) for n in range(N_DRAWS)],
        [(0, 0, n) for n in range(N_DRAWS)],
    ):
        u = np.array([uniform_bits(*key) for key in keys]) / 2**53
        assert kstest(u, "uniform").pvalue > 0.001
        assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 0.03


def test_the_inverse_is_exact_at_the_edges_and_passes_over_what_weighs_nothing() -> None:
    weights_RV = torch.tensor([[0, 1, 0, 3, 0]]).expand(4, -1)
    quarter = 2**53 // 4
    assert _invert(weights_RV, [0, quarter - 1, quarter, 2**53 - 1]) == [1, 1, 3, 3]
