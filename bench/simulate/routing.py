"""Four ways to choose workers, on a recorded trace: what requests wait for their first tokens.

    python -m bench.simulate.routing --trace FILE

FILE is one of Mooncake's traces (JSONL with `hash_ids`, blocks of 512 tokens). Four prefill and
four decode workers serve its first requests, and each policy has the same ones:

- `random`: any pair;
- `load`: the prefill worker with the fewest tokens to compute, the decode worker with the fewest
  sequences;
- `local`: the prefill worker where the prompt is predicted to be computed first, by its queue and
  by what it holds itself of the prefix; the decode worker as before;
- `global`: the product's own (`launch.gateway.router`): what the decode worker holds counts too,
  for the prefill worker fetches it from there.

One simulated token stands for 16, and costs as many. Costs are those of a model of 70 billion
parameters with 8 KV heads on 8 A100s a worker. The last line is JSON.
"""

import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy as np

from bench import reasons
from bench.flag_types import Parser
from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, Run, serve
from bench.traces import BLOCK_TOKENS, Row, fit, read
from common.ids import InstanceId
from common.values import Disaggregate
from launch.gateway.fleet import Router
from launch.gateway.router import Route, route
from launch.gateway.views import Demand, WorkerView

SCALE = 16  # tokens of the trace that one of a run stands for
PAGE_TOKENS = BLOCK_TOKENS // SCALE
KEPT = 0.9  # of the local policy's mean TTFT, that the global one must not exceed
ROUTERS = ("random", "load", "local", "global")

# Of one worker, per token of the trace. 141 GB of weights and KV are read at 8 x 2.04 TB/s x 65 %;
# 2 x 70.6e9 operations a token at 8 x 312 TFLOP/s x 60 %; attention, 4 x 80 layers x 8192 a pair,
# at 25 %; 80 layers x 2 x 8 heads x 128 x 2 bytes of KV.
FIXED_S, TOKEN_S, PAIR_S = 13.3e-3, 94e-6, 4.2e-9
KV_BYTES, KV_READ_S, SEQUENCE_S = 327_680, 31e-9, 38e-6
LINK_BYTES_PER_S = 50e9  # 4 x 100 Gbit/s


def costs() -> Costs:
    """Of a run's tokens: a pair is of two, a step of decoding as many steps."""
    return Costs(
        prefill=PrefillCosts(
            fixed_s=FIXED_S, per_token_s=TOKEN_S * SCALE, per_pair_s=PAIR_S * SCALE**2
        ),
        decode=DecodeCosts(
            fixed_s=FIXED_S * SCALE,
            per_context_token_s=KV_READ_S * SCALE**2,
            per_sequence_s=SEQUENCE_S * SCALE,
        ),
        transfer=TransferCosts(latency_s=1e-3, bytes_per_s=LINK_BYTES_PER_S),
        page_bytes=KV_BYTES * BLOCK_TOKENS,
    )


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is served, and by whom."""

    requests: int = 1200
    skip: int = 0  # of the trace, before them
    speed: float = 0.65  # times the trace's own
    prefills: int = 4
    decodes: int = 4
    blocks: int = 5859  # of 512 tokens, that a worker keeps: 3 million tokens
    seed: int = 0

    @property
    def shape(self) -> Shape:
        return Shape(
            prefills=self.prefills,
            decodes=self.decodes,
            prefill_pages=self.blocks,
            decode_pages=self.blocks,
            page_tokens=PAGE_TOKENS,
            chunk_tokens=8192 // SCALE,
            budget_tokens=8192 // SCALE,
            max_num_seqs=256,
            max_waiting=100_000,
            disaggregate="always",
            costs=costs(),
        )


def asks(rows: Sequence[Row], setting: Setting) -> list[Ask]:
    """Prompts that share the blocks which those of the trace share."""
    chosen = rows[setting.skip : setting.skip + setting.requests]
    made: list[Ask] = []
    for one in fit(chosen, max_tokens=None, length_scale=1 / SCALE):
        blocks = (token for key, n in one.blocks for token in (key,) * n)
        prompt = tuple(blocks)[: one.n_in]
        own = (-1 - len(made),) * (one.n_in - len(prompt))
        at_s = (one.at_s - chosen[0].at_s) / setting.speed
        made.append(Ask(at_s=at_s, prompt=(*prompt, *own), output_tokens=one.n_out))
    return made


def router_of(name: str, seed: int) -> Router:
    """By its name. Random choices are the seed's."""
    return {"random": AtRandom(seed), "load": by_load, "local": by_local_cache, "global": route}[
        name
    ]


class AtRandom:
    """A router that looks at nothing."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def __call__(
        self,
        demand: Demand,  # noqa: ARG002  a router's
        prefills: Sequence[WorkerView],
        decodes: Sequence[WorkerView],
        barred: Collection[object] = (),  # noqa: ARG002  the same
        *,
        disaggregate: Disaggregate = "always",  # noqa: ARG002  the same
        refused: Collection[InstanceId] = (),  # noqa: ARG002  the same
    ) -> Route | None:
        return _pair(self._random.choice(prefills), self._random.choice(decodes))


def by_load(
    demand: Demand,  # noqa: ARG001  a router's
    prefills: Sequence[WorkerView],
    decodes: Sequence[WorkerView],
    barred: Collection[object] = (),  # noqa: ARG001  the same
    *,
    disaggregate: Disaggregate = "always",  # noqa: ARG001  the same
    refused: Collection[InstanceId] = (),  # noqa: ARG001  the same
) -> Route | None:
    """The least loaded of each pool."""
    return _pair(min(prefills, key=_queue), min(decodes, key=_busy))


def by_local_cache(
    demand: Demand,
    prefills: Sequence[WorkerView],
    decodes: Sequence[WorkerView],
    barred: Collection[object] = (),  # noqa: ARG001  a router's
    *,
    disaggregate: Disaggregate = "always",  # noqa: ARG001  the same
    refused: Collection[InstanceId] = (),  # noqa: ARG001  the same
) -> Route | None:
    """Who has the least to compute, this prompt less what it holds of it itself included."""

    def to_compute(view: WorkerView) -> tuple[int, InstanceId]:
        n_cached = view.cached_pages(demand.hashes) * view.page_tokens
        return (view.queued_tokens + demand.n_tokens - n_cached, view.instance)

    return _pair(min(prefills, key=to_compute), min(decodes, key=_busy))


def _queue(view: WorkerView) -> tuple[int, InstanceId]:
    return (view.queued_tokens, view.instance)


def _busy(view: WorkerView) -> tuple[int, InstanceId]:
    return (view.busy, view.instance)


def _pair(prefill: WorkerView, decode: WorkerView) -> Route:
    """Nobody is told of what decode holds: prefill does not wait to hear of it."""
    return Route(prefill=prefill.instance, decode=decode.instance, decode_cached_tokens=0)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of one policy."""

    mean_ttft_s: float
    p90_ttft_s: float
    cached: float  # share of the prompts' tokens that were not computed


def outcome(run: Run) -> Outcome:
    ttfts_s = [np.inf if one.ttft_s is None else one.ttft_s for one in run.served]
    n_cached = sum(one.cached_tokens for one in run.served)
    return Outcome(
        mean_ttft_s=float(np.mean(ttfts_s)),
        p90_ttft_s=float(np.quantile(ttfts_s, 0.9)),
        cached=n_cached / sum(len(one.ask.prompt) for one in run.served),
    )


def passed(outcomes: dict[str, Outcome]) -> bool:
    """In their order, and the last by so much."""
    means = [outcomes[name].mean_ttft_s for name in ROUTERS]
    return means == sorted(means, reverse=True) and means[3] <= KEPT * means[2]


def main(argv: Sequence[str]) -> int:
    """Returns 1 unless mean TTFT falls from each policy to the next: random, load, local, global;
    and the last is 0.9 of the one before or less."""
    parser = Parser(prog="python -m bench.simulate.routing", description=main.__doc__)
    parser.add_argument("--trace", type=Path, required=True)
    for name, value in asdict(Setting()).items():
        parser.add_argument("--" + name, type=type(value), default=value)
    flags = vars(parser.parse_all(argv))
    trace: Path = flags.pop("trace")
    setting = Setting(**flags)
    try:
        reasons.must_be_readable("--trace", trace)
        rows = read(trace)
    except ValueError as error:
        parser.error(str(error))
    if len(rows) < setting.skip + setting.requests or not any(row.hash_ids for row in rows):
        parser.error(f"{trace} has {len(rows)} requests, and must have hash_ids")
    workload = asks(rows, setting)
    seconds = workload[-1].at_s
    print(f"{len(workload)} requests in {seconds:.0f} s, {setting.prefills} + {setting.decodes}")
    print(f"{'':8}{'mean TTFT':>12}{'p90':>10}{'cached':>10}")
    outcomes: dict[str, Outcome] = {}
    for name in ROUTERS:
        run = serve(workload, setting.shape, router=router_of(name, setting.seed))
        one = outcomes[name] = outcome(run)
        print(f"{name:8}{one.mean_ttft_s:10.2f} s{one.p90_ttft_s:8.2f} s{100 * one.cached:8.1f} %")
    result = {
        "setting": asdict(setting),
        "outcomes": {name: asdict(one) for name, one in outcomes.items()},
        "global_over_local": outcomes["global"].mean_ttft_s / outcomes["local"].mean_ttft_s,
        "passed": passed(outcomes),
    }
    print(json.dumps({"benchmark": "routing", **result}))
    return 0 if passed(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
