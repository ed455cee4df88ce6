"""What is to be planned for, whether any plan can do it, and which plans are worth trying.

Pure. Must not search.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import mean

from bench.measures import MS, Goodput
from bench.simulate import plans
from bench.simulate.costs_file import CostsFile
from bench.simulate.plans import DEFAULT_TOKENS, Plan, Request, Seen, percentile_ms


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is planned for."""

    requests: tuple[Request, ...]
    slo: Goodput
    target: float  # share (0 to 1) of the requests that must keep it
    device: CostsFile
    n_devices: int

    @property
    def mean_output(self) -> float:
        return mean(request.output_tokens for request in self.requests)

    @property
    def mean_tokens(self) -> float:
        """Of KV while it decodes."""
        return mean(len(r.prompt) + r.output_tokens / 2 for r in self.requests)


# --- what cannot be kept -------------------------------------------------------------------------


def refusal(task: Task) -> str | None:
    """Why no plan can do it: a request that fits no device, an SLO that is missed alone."""
    longest = max(task.requests, key=lambda r: len(r.prompt) + r.output_tokens)
    too_long = too_long_for(task.device, len(longest.prompt), longest.output_tokens)
    if too_long is not None:
        return too_long
    seen = alone(task)
    if seen.attainment(task.slo) >= task.target:
        return None
    percent = 100 * task.target
    limits = (
        ("ttft", task.slo.ttft_ms, seen.ttft_s, "their first token"),
        ("tpot", task.slo.tpot_ms, seen.tpot_s, "a token after the first"),
        ("e2el", task.slo.e2el_ms, seen.e2el_s, "the whole answer"),
    )
    missed: list[tuple[str, float, float, str]] = []
    for name, limit_ms, values_s, what in limits:
        least_ms = percentile_ms(values_s, task.target)
        if limit_ms is not None and least_ms > limit_ms:
            missed.append((name, limit_ms, least_ms, what))
    if missed:
        asked = " ".join(f"{name}:{limit_ms:g}" for name, limit_ms, _, _ in missed)
        had = ", ".join(f"{what} within {least_ms:.4g} ms" for _, _, least_ms, what in missed)
        kept = " ".join(f"{name}:{math.ceil(least_ms)}" for name, _, least_ms, _ in missed)
        return (
            f"--goodput {asked} cannot be kept: alone on idle devices {percent:g} % of the "
            f"requests have {had}; ask for {kept} or more, or for shorter requests"
        )
    return (
        f"only {100 * seen.attainment(task.slo):.3g} % of the requests keep all of --goodput alone "
        f"on idle devices, and --attainment is {percent:g}: ask for less"
    )


def too_long_for(device: CostsFile, n_prompt: int, n_output: int) -> str | None:
    """Why a request of so many tokens cannot be served by such a device."""
    room = device.n_pages * device.page_tokens
    if n_prompt + n_output <= room:
        return None
    return (
        f"a request of {n_prompt} tokens in and {n_output} out does not fit a device's KV cache of "
        f"{room} tokens (n_pages {device.n_pages} x page_tokens {device.page_tokens} of --costs): "
        "ask for shorter ones, or profile with more pages"
    )


def alone(task: Task) -> Seen:
    """Each request by itself, its prompt in one pass: no plan is faster."""
    costs, longest = task.device.costs, max(len(r.prompt) for r in task.requests)
    most = max(r.output_tokens for r in task.requests)
    apart_s = 2 * costs.prefill.seconds(longest, longest * longest)
    apart_s += most * costs.decode.seconds(longest + most, 1)
    apart_s += costs.pull_s(longest) + task.device.request_s + 1.0
    spread = [
        Request(
            at=number * apart_s,
            prompt=one.prompt,
            output_tokens=one.output_tokens,
            n_cached=one.n_cached,
        )
        for number, one in enumerate(task.requests)
    ]
    plan = Plan(prefills=0, decodes=1, prefill_tokens=longest, chunk_tokens=longest, max_num_seqs=1)
    return plans.predict(plan, spread, 1.0, task.device)


# --- limits worth trying -------------------------------------------------------------------------


def most_at_once(task: Task) -> int:
    """Sequences of which a step, without prompts, keeps the TPOT, and that have room."""
    room = task.device.n_pages * task.device.page_tokens
    most = max(1, min(1024, int(room / task.mean_tokens)))
    limit_ms, seconds = task.slo.tpot_ms, task.device.costs.decode.seconds
    if limit_ms is None:
        return most
    fitting = [n for n in range(1, most + 1) if seconds(n * task.mean_tokens, n) * MS <= limit_ms]
    return fitting[-1] if fitting else 1


def seqs_grid(task: Task) -> list[int]:
    """`--max-num-seqs`: around what the TPOT allows."""
    most = most_at_once(task)
    return _distinct(_round(n) for n in (most, 2 * most, most / 2, 4 * most))


def prefill_grid(task: Task) -> list[int]:
    """Tokens of a prefill pass: those that keep the TTFT, and what `baton serve` has."""
    limit_ms, seconds = task.slo.ttft_ms, task.device.costs.prefill.seconds
    sizes = [DEFAULT_TOKENS]
    for size in (128, 2048, 8192):
        if limit_ms is None or seconds(size, size * size / 2) * MS <= limit_ms:
            sizes.append(size)
    return sizes


def chunk_grid(task: Task) -> list[int]:
    """Tokens of prompts beside sequences that decode: a pass with them is not far above the TPOT
    (it need not keep it: a request's TPOT is a mean)."""
    limit_ms, costs = task.slo.tpot_ms, task.device.costs
    n = max(1, most_at_once(task) // 2)
    step_s = costs.decode.seconds(n * task.mean_tokens, n)
    sizes = [32, 64, 128, 256, 512, 1024, 2048]
    if limit_ms is None:
        return sizes[2:]
    fitting = [s for s in sizes if (step_s + costs.prefill.seconds(s, 0)) * MS <= 4 * limit_ms]
    return fitting[-5:] or sizes[:1]


def _round(n: float) -> int:
    return max(1, round(n)) if n < 8 else 8 * round(n / 8)


def _distinct(numbers: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(numbers))


def candidates(task: Task, prefills: int) -> Iterator[Plan]:
    """All limits of one ratio; 0 prefill workers are colocated."""
    pairs = (
        [(tokens, DEFAULT_TOKENS) for tokens in prefill_grid(task)]
        if prefills
        else [(DEFAULT_TOKENS, chunk) for chunk in chunk_grid(task)]
    )
    for prefill_tokens, chunk_tokens in pairs:
        for max_num_seqs in seqs_grid(task):
            yield Plan(
                prefills=prefills,
                decodes=task.n_devices - prefills,
                prefill_tokens=prefill_tokens,
                chunk_tokens=chunk_tokens,
                max_num_seqs=max_num_seqs,
            )


def capacity(task: Task, plan: Plan) -> float:
    """Requests/s that it computes if all batches are full. Not tight: where a search begins."""
    costs = task.device.costs
    n_tokens = mean(len(r.prompt) - min(r.n_cached, len(r.prompt) - 1) for r in task.requests)
    prompt_s = costs.prefill.seconds(n_tokens, n_tokens * n_tokens / 2)
    n = min(plan.max_num_seqs, most_at_once(task))
    answer_s = task.mean_output * costs.decode.seconds(n * task.mean_tokens, n) / n
    if not plan.prefills:
        return plan.decodes / (prompt_s + answer_s)
    return min(plan.prefills / prompt_s, plan.decodes / answer_s)
