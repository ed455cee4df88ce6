"""What is derived from public figures, against what DistServe's authors measured on an A100-80G:
`simdistserve/estimators/profile_data/profiler-a100-80g.distserve.json` and `max_num_tokens.csv` of
github.com/LLMServe/DistServe (Apache-2.0)."""

import numpy as np
import pytest

from bench.simulate.published import (
    A100_80G,
    CHAT,
    LINKS,
    OPT_13B,
    PAGE_TOKENS,
    SUMMARISATION,
    Workload,
    costs_of,
    n_pages,
)

MEASURED_PREFILL = {  # devices -> ms, ms a token, ms a squared length
    1: (16.456860, 0.092647507, 6.474786e-06),
    2: (13.402703, 0.062342916, 2.226884e-06),
}
MEASURED_DECODE = {  # devices -> ms, ms a token of context, ms a sequence; below 95 sequences
    1: (19.934703, 0.000626936, 0.038506977),
    2: (13.294796, 0.000341092, 0.062963932),
}
MEASURED_TOKENS = {1: 66_144, 2: 163_008}  # of KV that fit
WITHIN = {1: 0.08, 2: 0.16}


@pytest.mark.parametrize("n_devices", [1, 2])
@pytest.mark.parametrize("n_tokens", [256, 512, 755, 1024, 2048])
def test_a_prompt_takes_what_was_measured(n_devices: int, n_tokens: int) -> None:
    fixed_ms, token_ms, square_ms = MEASURED_PREFILL[n_devices]
    measured_s = (fixed_ms + token_ms * n_tokens + square_ms * n_tokens**2) / 1e3
    derived = costs_of(OPT_13B, A100_80G, n_devices).prefill
    derived_s = derived.seconds(n_tokens, n_tokens**2 / 2)
    assert derived_s == pytest.approx(measured_s, rel=WITHIN[n_devices])


@pytest.mark.parametrize("n_devices", [1, 2])
@pytest.mark.parametrize(("n_sequences", "n_context"), [(1, 500), (16, 16_000), (64, 60_000)])
def test_a_step_takes_what_was_measured(n_devices: int, n_sequences: int, n_context: int) -> None:
    fixed_ms, context_ms, sequence_ms = MEASURED_DECODE[n_devices]
    measured_s = (fixed_ms + context_ms * n_context + sequence_ms * n_sequences) / 1e3
    derived_s = costs_of(OPT_13B, A100_80G, n_devices).decode.seconds(n_context, n_sequences)
    assert derived_s == pytest.approx(measured_s, rel=WITHIN[n_devices])


@pytest.mark.parametrize("n_devices", [1, 2])
def test_as_much_kv_fits_as_did(n_devices: int) -> None:
    n_tokens = n_pages(OPT_13B, A100_80G, n_devices) * PAGE_TOKENS
    assert n_tokens == pytest.approx(MEASURED_TOKENS[n_devices], rel=0.01)


def test_kv_is_as_large_as_the_papers_say() -> None:
    assert OPT_13B.kv_bytes == 800 * 1024
    costs = costs_of(OPT_13B, A100_80G)
    assert costs.page_bytes == 16 * OPT_13B.kv_bytes
    prompt_s = costs.pull_s(755 // PAGE_TOKENS)
    assert prompt_s < 0.030  # "95 % take less than 30 ms": the two halves are in one host
    assert costs_of(OPT_13B, A100_80G, link=LINKS["25gbe"]).pull_s(755 // PAGE_TOKENS) > 0.2


@pytest.mark.parametrize(
    ("workload", "prompt", "output"), [(CHAT, 755.5, 200.3), (SUMMARISATION, 1738.3, 90.7)]
)
def test_lengths_have_the_means_that_were_published(
    workload: Workload, prompt: float, output: float
) -> None:
    lengths = np.array(workload.lengths(20_000, OPT_13B.context_tokens, seed=3))
    assert lengths.mean(axis=0) == pytest.approx([prompt, output], rel=0.02)
    assert lengths.sum(axis=1).max() <= OPT_13B.context_tokens


def test_one_seed_is_one_sequence_at_every_rate() -> None:
    slow, fast = (CHAT.asks(OPT_13B, 50, rate, seed=1) for rate in (1.0, 4.0))
    assert [ask.at_s for ask in slow] == pytest.approx([4 * ask.at_s for ask in fast])
    assert [ask.output_tokens for ask in slow] == [ask.output_tokens for ask in fast]
    assert slow[-1].at_s == pytest.approx(50, rel=0.4)
