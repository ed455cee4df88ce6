"""A plan: how many workers of which kind, with which batch limits; what the fast model
(`bench.simulate.queueing`) says of it, and what it is for the real cores and for `baton serve`.

The model hands every prompt over; the real cores do so where it pays, as `baton serve` does.
Pure. Must not search.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measures import MS, Goodput
from bench.simulate.costs_file import CostsFile
from bench.simulate.queueing import Job, Pool, serve
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, Run
from common.kv.layout import pages_for

DEFAULT_TOKENS = 512  # of a pass, as `baton serve` has it
PREFILL_SEQS = 64  # the same: prompts in a pass
MAX_WAITING = 256  # the same: requests that a worker queues
MESSAGE_S = Shape.message_s


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Workers, a device each, and their limits. Without prefill workers it is colocated."""

    prefills: int
    decodes: int
    prefill_tokens: int  # of a prefill worker's pass
    chunk_tokens: int  # of prompts beside sequences that decode; of no matter with prefill workers
    max_num_seqs: int  # of a decode worker's pass

    @property
    def n_devices(self) -> int:
        return self.prefills + self.decodes

    @property
    def name(self) -> str:
        return f"{self.prefills}:{self.decodes}" if self.prefills else "colocated"

    @property
    def decode_tokens(self) -> int:
        """Of a decode worker's pass."""
        return max(DEFAULT_TOKENS, self.chunk_tokens, self.max_num_seqs)

    @property
    def limits(self) -> str:
        """For a reader."""
        prompts = (
            f"{self.prefill_tokens} tokens a prefill pass"
            if self.prefills
            else f"chunks of {self.chunk_tokens} tokens"
        )
        return f"{prompts}, {self.max_num_seqs} sequences"

    @property
    def flags(self) -> str:
        """Of `baton serve`."""
        parts = [f"--prefill {self.prefills}", f"--decode {self.decodes}"]
        if self.prefills:
            parts.append(f"--prefill.max-num-batched-tokens {self.prefill_tokens}")
            parts.append(f"--prefill.chunk-tokens {self.prefill_tokens}")
        else:
            parts.append(f"--decode.chunk-tokens {self.chunk_tokens}")
        parts.append(f"--decode.max-num-seqs {self.max_num_seqs}")
        parts.append(f"--decode.max-num-batched-tokens {self.decode_tokens}")
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Of a workload, at a rate of 1 request/s."""

    at: float
    prompt: tuple[int, ...]
    output_tokens: int
    n_cached: int = 0  # leading tokens that a prompt before it has brought, in one endless cache


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the clients of a workload see, in its order. Seconds; inf: it has not come."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]  # 0 of a single token
    e2el_s: NDArray[np.float64]
    completed: float  # requests/s

    def attainment(self, slo: Goodput) -> float:
        """Share (0 to 1) that kept all its limits."""
        met = np.ones(len(self.ttft_s), np.bool_)
        for values_s, limit_ms in (
            (self.ttft_s, slo.ttft_ms),
            (self.tpot_s, slo.tpot_ms),
            (self.e2el_s, slo.e2el_ms),
        ):
            if limit_ms is not None:
                met &= values_s * MS <= limit_ms
        return float(met.mean()) if len(met) else 0.0


def percentile_ms(values_s: NDArray[np.float64], share: float) -> float:
    """The least of the values that so many (0 to 1) do not exceed."""
    at = max(0, math.ceil(share * len(values_s) - 1e-9) - 1)
    return float(np.sort(values_s)[at]) * MS


def prefill_pool(plan: Plan, device: CostsFile) -> Pool:
    return Pool(
        n_workers=plan.prefills,
        budget_tokens=plan.prefill_tokens,
        chunk_tokens=plan.prefill_tokens,
        max_num_seqs=PREFILL_SEQS,
        room_tokens=device.n_pages * device.page_tokens,
        costs=device.costs,
    )


def decode_pool(plan: Plan, device: CostsFile) -> Pool:
    return Pool(
        n_workers=plan.decodes,
        budget_tokens=plan.decode_tokens,
        chunk_tokens=plan.chunk_tokens,
        max_num_seqs=plan.max_num_seqs,
        room_tokens=device.n_pages * device.page_tokens,
        costs=device.costs,
    )


def handoff_s(n_prompt: int, plan: Plan, device: CostsFile) -> float:
    """From the end of a prompt's last pass until it can join: what is pulled while the prompt is
    computed is hidden, but for that pass's pages."""
    n_pages = pages_for(min(n_prompt, plan.prefill_tokens), device.page_tokens)
    return MESSAGE_S + device.costs.pull_s(n_pages)


def predict(plan: Plan, requests: Sequence[Request], rate: float, device: CostsFile) -> Seen:
    """By the fast model, at so many requests/s."""
    before_s, after_s = device.request_s + MESSAGE_S, device.token_s + MESSAGE_S
    firsts: list[Job] = []
    for request in requests:
        n_cached = min(request.n_cached, len(request.prompt) - 1)
        job = Job(
            at_s=request.at / rate + before_s,
            n_cached=n_cached,
            n_prompt=len(request.prompt) - n_cached,
            n_steps=0 if plan.prefills else request.output_tokens - 1,
        )
        firsts.append(job)
    if plan.prefills:
        serve(prefill_pool(plan, device), firsts)
        lasts = _decode(plan, requests, firsts, device)
    else:
        serve(decode_pool(plan, device), firsts)
        lasts = firsts
    came_s = np.array([job.at_s for job in firsts]) - before_s
    drawn_s = np.array([job.drawn_s for job in firsts])
    ended_s = np.array([job.ended_s for job in lasts])
    n_more = np.array([max(1, request.output_tokens - 1) for request in requests])
    return Seen(
        ttft_s=drawn_s - came_s + after_s,
        tpot_s=(ended_s - drawn_s) / n_more,
        e2el_s=ended_s - came_s + after_s,
        completed=len(requests) / float(ended_s.max()),
    )


def _decode(
    plan: Plan, requests: Sequence[Request], firsts: Sequence[Job], device: CostsFile
) -> list[Job]:
    """Their other halves, in the same order. One of a single token never gets there."""
    lasts: list[Job] = []
    joining: list[Job] = []
    for request, first in zip(requests, firsts, strict=True):
        n_prompt = len(request.prompt)
        if request.output_tokens == 1:
            lasts.append(first)
            continue
        job = Job(
            at_s=first.drawn_s + handoff_s(n_prompt, plan, device),
            n_cached=n_prompt,
            n_prompt=0,
            n_steps=request.output_tokens - 1,
        )
        lasts.append(job)
        joining.append(job)
    joining.sort(key=lambda job: job.at_s)
    serve(decode_pool(plan, device), joining)
    return lasts


def shape(plan: Plan, device: CostsFile) -> Shape:
    """For the real cores."""
    return Shape(
        prefills=plan.prefills,
        decodes=plan.decodes,
        prefill_pages=device.n_pages,
        decode_pages=device.n_pages,
        page_tokens=device.page_tokens,
        chunk_tokens=plan.prefill_tokens,
        budget_tokens=plan.prefill_tokens,
        max_num_seqs=PREFILL_SEQS,
        max_waiting=MAX_WAITING,
        decode_chunk_tokens=plan.chunk_tokens,
        decode_budget_tokens=plan.decode_tokens,
        decode_max_num_seqs=plan.max_num_seqs,
        costs=device.costs,
        request_s=device.request_s,
        token_s=device.token_s,
        disaggregate="auto",  # as `baton serve` has it
    )


def asks(requests: Sequence[Request], rate: float) -> list[Ask]:
    """For the real cores, at so many requests/s. They state no SLO, as `baton bench` does not."""
    return [
        Ask(at_s=one.at / rate, prompt=one.prompt, output_tokens=one.output_tokens)
        for one in requests
    ]


def seen(run: Run) -> Seen:
    """What the real cores did; who was refused has seen nothing."""
    inf = float("inf")

    def column(values: Sequence[float | None]) -> NDArray[np.float64]:
        return np.array([inf if value is None else value for value in values])

    n_whole = sum(one.e2e_s is not None for one in run.served)
    return Seen(
        ttft_s=column([one.ttft_s for one in run.served]),
        tpot_s=column([one.tpot_s for one in run.served]),
        e2el_s=column([one.e2e_s for one in run.served]),
        completed=n_whole / run.seconds if run.seconds else 0.0,
    )
