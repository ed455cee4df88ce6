"""Draws by graphs as they run on a GPU, with rules of all kinds beside each other."""

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch

from common.engine.device import open_device
from common.engine.plan import Drawn, PassPlan, filled
from common.params import SamplingParams
from common.sampling import sample, score, told_logprob
from tests.conformance.kernels.test_draws import draw, logits
from tests.gpu.steps import Bench
from tests.gpu.test_steps import SMALL

pytestmark = pytest.mark.gpu

GPU = torch.device("cuda")
PLAIN = SamplingParams(max_tokens=99, seed=3, temperature=0.8)
RULES = (
    PLAIN,
    msgspec.structs.replace(PLAIN, repetition_penalty=1.3, frequency_penalty=0.4, logprobs=20),
    msgspec.structs.replace(
        PLAIN, presence_penalty=0.9, logit_bias=((7, 5.0),), min_tokens=6, end_token_ids=(7,)
    ),
    msgspec.structs.replace(PLAIN, temperature=0.0, logprobs=0, top_p=0.9),
)


@pytest.fixture(scope="module")
def bench() -> Bench:
    made = Bench(SMALL, open_device("cuda:0", "float32"), n_tokens=8 * 700, max_num_seqs=8)
    made.graphs.capture(lambda *_: None)
    return made


def with_rules(plan: PassPlan) -> PassPlan:
    return replace(
        plan,
        draws=tuple(
            msgspec.structs.replace(one, params=RULES[one.row % len(RULES)]) for one in plan.draws
        ),
    )


def one_by_one(bench: Bench, plans: Sequence[PassPlan]) -> list[tuple[Drawn, ...]]:
    said: list[tuple[Drawn, ...]] = []
    for plan in plans:
        known = filled(plan, said[-1] if said else ())
        draws = tuple(
            msgspec.structs.replace(one, outputs=tuple(drawn[at].token for drawn in said))
            for at, one in enumerate(plan.draws)
        )
        said.append(bench.runner.run(replace(known, draws=draws)).drawn)
    return said


def test_rows_with_rules_say_what_passes_say_that_are_computed_one_by_one(bench: Bench) -> None:
    plans = [with_rules(plan) for plan in bench.steps(6, 500, 12)]
    bench.runner.cache.pages_PB.zero_()
    torch.cuda.synchronize()
    waiting = [bench.graphs.begin(plans[0])]
    said: list[tuple[Drawn, ...]] = []
    for plan in plans[1:]:  # two are unanswered, at most
        waiting.append(bench.graphs.begin(plan))
        said.append(waiting.pop(0)().drawn)
    said.append(waiting.pop()().drawn)
    bench.runner.cache.pages_PB.zero_()
    assert said == one_by_one(bench, plans)


def test_rows_with_rules_are_asked_for_without_waiting_and_without_memory(bench: Bench) -> None:
    plans = [with_rules(plan) for plan in bench.steps(6, 500, 3)]
    bench.graphs.begin(plans[0])()
    begun = [bench.graphs.begin(plans[1])]
    n_taken = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        begun.append(bench.graphs.begin(plans[2]))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == n_taken
    for wait in begun:
        assert len(wait().drawn) == 6


def test_a_prompt_is_asked_for_without_waiting(bench: Bench) -> None:
    bench.graphs.begin(bench.prompt(300))()  # memory is there, kernels are compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        wait = bench.graphs.begin(bench.prompt(300))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert wait().drawn == ()


@pytest.mark.parametrize("n_vocab", [64, 2049, 49152])
def test_masks_penalties_and_biases_are_those_of_the_cpu(n_vocab: int) -> None:
    rng = random.Random(n_vocab)
    z_RV = torch.stack([logits(rng, n_vocab) for _ in range(40)])
    draws = [
        msgspec.structs.replace(
            draw(RULES[r % 3]),
            outputs=tuple(rng.choices(range(n_vocab), k=5)),
            prompt=tuple(rng.choices(range(n_vocab), k=5)),
            index=5,
        )
        for r in range(len(z_RV))
    ]
    allowed = {r: z_RV[r].isfinite().numpy() for r in range(0, len(z_RV), 3)}
    for allowed_V in allowed.values():
        allowed_V[np.array(rng.choices(range(n_vocab), k=n_vocab // 2))] = False
        allowed_V[rng.randrange(n_vocab)] = True
    finite = [r for r in range(len(z_RV)) if r not in allowed or z_RV[r][allowed[r]].max() > -99]
    z_RV, draws = z_RV[finite], [draws[r] for r in finite]
    allowed = {at: allowed[r] for at, r in enumerate(finite) if r in allowed}
    assert sample(z_RV.to(GPU), draws, allowed) == sample(z_RV, draws, allowed)


@pytest.mark.parametrize("n_vocab", [7, 2049, 128256])
def test_log_probabilities_are_those_of_the_cpu(n_vocab: int) -> None:
    from common.kernels.triton.logprob_rows import MOST_TOP, LogprobRows, read
    from common.kernels.triton.logprobs import logprobs

    rng = random.Random(n_vocab)
    z_RV = torch.stack([logits(rng, n_vocab) for _ in range(30)])
    tokens = [rng.randrange(n_vocab) for _ in z_RV]
    n_top = min(MOST_TOP, n_vocab)
    wanted_R = torch.full((len(z_RV),), n_top, dtype=torch.int32, device=GPU)
    rows = LogprobRows.of(wanted_R, n_vocab)
    logprobs(z_RV.to(GPU), torch.tensor(tokens, device=GPU), rows)
    for r, told_C in enumerate(rows.told_RC.cpu().numpy()):
        told = told_logprob(tokens[r], read(told_C, n_top), n_vocab)
        assert told == score(z_RV[r : r + 1], [tokens[r]], n_top)[0]
