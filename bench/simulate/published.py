"""Costs and workloads of DistServe's evaluation (Zhong et al., OSDI 2024, arXiv 2401.09670), from
public figures alone: the model's shape, the device's peak rates, and the shares of them that are
reached. `tests/unit/bench/simulate/test_published.py` holds them against what that paper's authors
measured (`simdistserve`, Apache-2.0). Nothing here was measured by us.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.simulate.costs import Costs, DecodeCosts, PrefillCosts, TransferCosts
from bench.simulate.timed import Ask

PAGE_TOKENS = 16
MATRIX_SHARE = 0.88  # of a device's peak, by the matrices of a long pass
ATTENTION_SHARE = 0.25  # the same, by attention over prompts
MEMORY_SHARE = 0.65  # of its bandwidth, by weights and KV
HIDDEN_SHARE = 0.6  # of what a sequence computes in a step: it is done while weights are read
POOL_SHARE = 0.93  # of its memory that weights and KV have together
REDUCE_SHARE = 0.25  # of a link, by all-reduces; that smaller matrices are slower is in it
REDUCE_S = 30e-6  # of one all-reduce, however small
REDUCES_A_LAYER = 2
DRAWN_AT_ONCE = 1024  # lengths; any number, but one


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder with as many KV heads as heads, in 16 bits."""

    name: str
    n_parameters: float
    n_layers: int
    hidden: int
    context_tokens: int

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return self.n_layers * self.hidden * 2 * 2

    @property
    def weight_bytes(self) -> float:
        return 2 * self.n_parameters


@dataclass(frozen=True, kw_only=True)
class Device:
    """Peak rates, as its maker states them."""

    name: str
    flops: float  # a second, dense, in 16 bits
    memory_bytes: float
    memory_bytes_per_s: float
    peer_bytes_per_s: float  # one way


OPT_13B = Model(name="OPT-13B", n_parameters=12.85e9, n_layers=40, hidden=5120, context_tokens=2048)
A100_80G = Device(
    name="A100-SXM-80GB",
    flops=312e12,
    memory_bytes=80 * 2**30,
    memory_bytes_per_s=2.039e12,
    peer_bytes_per_s=300e9,
)
LINKS = {
    "nvlink": TransferCosts(latency_s=1e-3, bytes_per_s=0.8 * 300e9),
    "pcie": TransferCosts(latency_s=1e-3, bytes_per_s=25e9),  # 4.0, 16 lanes
    "25gbe": TransferCosts(latency_s=1e-3, bytes_per_s=0.9 * 25e9 / 8),  # between DistServe's hosts
}


def costs_of(
    model: Model, device: Device, n_devices: int = 1, link: TransferCosts = LINKS["nvlink"]
) -> Costs:
    """Of a worker that shards the model over so many devices (tensor parallelism).

    A pass reads the weights and, for each token, multiplies by them once; a token of a prompt
    attends to those before it (4 operations a layer and hidden dimension); a step reads the KV of
    its batch.
    """
    reduced_bytes = REDUCES_A_LAYER * model.n_layers * model.hidden * 2  # of one token
    reduced_bytes *= 2 * (n_devices - 1) / n_devices  # what a ring sends
    reduce_s = reduced_bytes / (device.peer_bytes_per_s * REDUCE_SHARE)
    least_s = REDUCES_A_LAYER * model.n_layers * REDUCE_S if n_devices > 1 else 0.0
    flops, memory = n_devices * device.flops, n_devices * device.memory_bytes_per_s * MEMORY_SHARE
    token_s = 2 * model.n_parameters / (flops * MATRIX_SHARE)
    fixed_s = model.weight_bytes / memory + least_s
    pair_flops = 4 * model.n_layers * model.hidden
    return Costs(
        prefill=PrefillCosts(
            fixed_s=fixed_s,
            per_token_s=token_s + reduce_s,
            per_pair_s=pair_flops / (flops * ATTENTION_SHARE),
        ),
        decode=DecodeCosts(
            fixed_s=fixed_s,
            per_context_token_s=model.kv_bytes / memory,
            per_sequence_s=(1 - HIDDEN_SHARE) * token_s + reduce_s,
        ),
        transfer=link,
        page_bytes=PAGE_TOKENS * model.kv_bytes,
    )


def n_pages(model: Model, device: Device, n_devices: int = 1) -> int:
    """That fit beside the weights."""
    kv_bytes = n_devices * device.memory_bytes * POOL_SHARE - model.weight_bytes
    return int(kv_bytes / (PAGE_TOKENS * model.kv_bytes))


@dataclass(frozen=True, kw_only=True)
class LogNormal:
    """Of a length's logarithm, before what does not fit the context is drawn again."""

    mean: float
    deviation: float

    @staticmethod
    def of_mean(mean: float, deviation: float) -> "LogNormal":
        """Whose lengths themselves have that mean."""
        return LogNormal(mean=math.log(mean) - deviation**2 / 2, deviation=deviation)

    def tokens(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        return rng.lognormal(self.mean, self.deviation, n).round().astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Independent requests, and what they are owed."""

    name: str
    prompt: LogNormal
    output: LogNormal
    ttft_s: float
    tpot_s: float

    def lengths(self, n: int, context_tokens: int, seed: int) -> list[tuple[int, int]]:
        """Tokens of (prompt, output); an output has two at least, so that it has a TPOT."""
        rng = np.random.default_rng(seed)
        made: list[tuple[int, int]] = []
        while len(made) < n:
            prompts = self.prompt.tokens(rng, DRAWN_AT_ONCE)
            outputs = self.output.tokens(rng, DRAWN_AT_ONCE)
            fit = (prompts >= 1) & (outputs >= 2) & (prompts + outputs <= context_tokens)
            made += zip(prompts[fit].tolist(), outputs[fit].tolist(), strict=True)
        return made[:n]

    def asks(self, model: Model, n: int, rate: float, seed: int) -> list[Ask]:
        """Poisson arrivals at `rate` requests/s. One seed is one sequence at every rate."""
        arrivals = np.random.default_rng((seed, 1)).exponential(1 / rate, n).cumsum()
        return [
            Ask(at_s=float(at_s), prompt=(0,) * prompt, output_tokens=output)
            for at_s, (prompt, output) in zip(
                arrivals, self.lengths(n, model.context_tokens, seed), strict=True
            )
        ]


# Means after redrawing are those of the paper: 755.5 and 200.3, 1738.3 and 90.7 tokens.
CHAT = Workload(
    name="chat",
    prompt=LogNormal(mean=6.8, deviation=1.0),
    output=LogNormal(mean=4.8, deviation=1.4),
    ttft_s=0.2,
    tpot_s=0.1,
)
SUMMARISATION = Workload(
    name="summarisation",
    prompt=LogNormal(mean=8.2, deviation=0.32),
    output=LogNormal(mean=4.48, deviation=0.75),
    ttft_s=15.0,
    tpot_s=0.15,
)
WORKLOADS = {workload.name: workload for workload in (CHAT, SUMMARISATION)}
