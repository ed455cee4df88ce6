"""Law 3 for passes that are planned ahead: what is said does not depend on when it was planned."""

import random

import hypothesis.strategies as st
import msgspec
import numpy as np
from hypothesis import given, settings

from common.engine.runner import Runner
from common.kernels import ops
from common.kv.cache import KVCache
from common.kv.layout import KVSpec
from common.messages import Expect
from tests.property.test_invariance import SPEC, small_model
from tests.unit.decode.builders import Bench, Blind, ended, expect

PAGE_TOKENS, N_PAGES, STEP_S = 4, 40, 0.01


def requests(rng: random.Random) -> list[tuple[int, Expect]]:
    """With the pass that each comes at."""
    made: list[tuple[int, Expect]] = []
    for name in "abcdef":
        prompt = tuple(rng.randrange(SPEC.vocab_size) for _ in range(rng.randrange(1, 30)))
        plain = expect(
            prompt,
            transfer=name,
            prefill=None,
            samples=rng.choice((1, 1, 3)),
            max_tokens=rng.randrange(4, 30),
            end=tuple(range(0, SPEC.vocab_size, 20)),
        )
        changes = {
            "temperature": rng.choice((0.0, 0.8)),
            "repetition_penalty": rng.choice((1.0, 1.3)),
            "frequency_penalty": rng.choice((0.0, 0.5)),
        }
        params = msgspec.structs.replace(plain.params, **changes)
        made.append((rng.randrange(20), msgspec.structs.replace(plain, params=params)))
    return made


def said(wanted: list[tuple[int, Expect]], *, plan_ahead: bool) -> dict[tuple[str, int], list[int]]:
    """By (transfer, sample)."""
    kv = KVSpec(
        n_layers=SPEC.n_layers,
        n_kv_heads=SPEC.n_kv_heads,
        head_dim=SPEC.head_dim,
        page_tokens=PAGE_TOKENS,
        dtype="float32",
    )
    runner = Runner(small_model(), KVCache(kv, np.zeros((N_PAGES, kv.page_bytes), np.uint8)))
    bench = Bench(
        n_pages=N_PAGES, page_tokens=PAGE_TOKENS, foresight=Blind(), plan_ahead=plan_ahead
    )
    tokens: dict[tuple[str, int], list[int]] = {}
    waiting, n_passes, n_ahead = list(wanted), 0, 0
    while waiting or bench.unanswered:
        for at, request in list(waiting):
            if at <= n_passes or not bench.unanswered:
                waiting.remove((at, request))
                bench.hear(request)
        bench.now = bench.began_at + 0.99 * STEP_S
        bench.take()
        n_ahead += len(bench.unanswered) == 2
        result = runner.run(bench.plan)
        bench.now = bench.began_at + STEP_S
        bench.done(result=result)
        n_passes += 1
        for run in bench.runs:
            assert run.index == len(tokens.setdefault((run.transfer, run.sample), []))
            tokens[run.transfer, run.sample] += run.tokens
    bench.hear(*(ended(request.transfer) for _, request in wanted))
    assert bench.pool.n_held == 0
    assert plan_ahead == (n_ahead > 0)
    return tokens


@settings(max_examples=4, deadline=None)
@given(st.integers(0, 2**32))
def test_the_same_is_said_bit_for_bit(seed: int) -> None:
    wanted = requests(random.Random(seed))
    ops.set_threads(1)
    assert said(wanted, plan_ahead=True) == said(wanted, plan_ahead=False)
