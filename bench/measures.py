"""Numbers from outcomes: pure, with the definitions and the keys of `vllm bench serve`.

TTFT    from sending to the first token
TTST    from the first token to the second, where a handoff shows
TPOT    (last token - first token) / (output tokens - 1); none of one token
ITL     gaps between chunks that carry tokens, those of all requests pooled
E2EL    from sending to the last token

Over requests that ended well; `client_queue_time` is what they waited in this client before they
were sent, in no other number but `e2el_including_client_queue`. `client_lag` is how late the client
itself was, at worst, while a request ran: latencies are not known more exactly than that. Imports
nothing of the engine.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from bench.client import Outcome

MS = 1e3
PERCENTILES = (90.0, 95.0, 99.0)
METRICS = (
    *("ttft", "ttst", "tpot", "itl", "e2el"),
    *("client_queue_time", "e2el_including_client_queue", "client_lag"),
)


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """What a request must keep to be good; None: no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    def met_by(self, outcome: Outcome) -> bool:
        """A request of one token has a TPOT of 0. One that failed or was given up meets nothing."""
        return outcome.ok and self.allows(outcome.ttft_s, outcome.tpot_s or 0.0, outcome.e2el_s)

    def allows(self, ttft_s: float | None, tpot_s: float | None, e2el_s: float | None) -> bool:
        """None: it has not come, which no limit allows."""
        pairs = ((self.ttft_ms, ttft_s), (self.tpot_ms, tpot_s), (self.e2el_ms, e2el_s))
        return all(
            value_s is not None and (limit_ms is None or value_s * MS <= limit_ms)
            for limit_ms, value_s in pairs
        )


def attainment(outcomes: Iterable[Outcome], slo: Goodput) -> float:
    """The part (0 to 1) of the requests that met it; failures did not, those cancelled by the
    client do not count. 0 of none."""
    met = [slo.met_by(outcome) for outcome in outcomes if not outcome.cancelled]
    return sum(met) / len(met) if met else 0.0


def duration_s(outcomes: Iterable[Outcome]) -> float:
    """From the load's begin to the end of the last request."""
    return max((outcome.ended_s for outcome in outcomes), default=0.0)


def throughput(outcomes: Sequence[Outcome]) -> float:
    """Requests/s that ended without failing; those cancelled by the client count."""
    return _rate(sum(not outcome.error for outcome in outcomes), duration_s(outcomes))


def summarise(
    outcomes: Sequence[Outcome],
    goodput: Goodput | None,
    duration_s: float,
    *,
    percentiles: Sequence[float] = PERCENTILES,
) -> dict[str, Any]:
    """Keys as in `vllm bench serve`'s JSON, and more: times in ms, rates per second.

    A metric of `metrics_without_values` is 0 everywhere, as there, and means nothing.
    """
    good = [outcome for outcome in outcomes if outcome.ok]
    generated = sum(outcome.output_tokens for outcome in good)
    prompted = sum(outcome.input_tokens for outcome in good)
    n_met = 0 if goodput is None else sum(map(goodput.met_by, good))
    result: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": sum(1 for outcome in outcomes if outcome.error),
        "cancelled": sum(1 for outcome in outcomes if outcome.cancelled),
        "errors_by_kind": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "total_input_tokens": prompted,
        "total_output_tokens": generated,
        "tokens_counted_by": dict(Counter(outcome.counted_by for outcome in good)),
        "token_chunks": sum(len(outcome.chunk_times_s) for outcome in good),
        "request_throughput": _rate(len(good), duration_s),
        "request_goodput": None if goodput is None else _rate(n_met, duration_s),
        "slo_attainment": None if goodput is None else attainment(outcomes, goodput),
        "output_throughput": _rate(generated, duration_s),
        "total_token_throughput": _rate(prompted + generated, duration_s),
        "max_output_tokens_per_s": peak_tokens_per_s(good),
        "max_concurrent_requests": peak_concurrency(good),
    }
    series = series_s(good)
    for name, values_s in series.items():
        result |= statistics(name, values_s, percentiles)
    return result | {"metrics_without_values": [name for name in series if not series[name]]}


def series_s(good: Sequence[Outcome]) -> dict[str, list[float]]:
    """By metric, the values that its statistics are of; of requests that ended well."""
    seconds = [(outcome, outcome.second_token_s) for outcome in good]
    return {
        "ttft": [outcome.ttft_s for outcome in good],
        "ttst": [at_s - o.chunk_times_s[0] for o, at_s in seconds if at_s is not None],
        "tpot": [tpot_s for outcome in good if (tpot_s := outcome.tpot_s) is not None],
        "itl": [gap_s for outcome in good for gap_s in outcome.gaps_s],
        "e2el": [outcome.e2el_s for outcome in good],
        "client_queue_time": [outcome.queued_s for outcome in good],
        "e2el_including_client_queue": [outcome.e2el_s + outcome.queued_s for outcome in good],
        "client_lag": [outcome.client_lag_s for outcome in good],
    }


def statistics(
    name: str, values_s: Sequence[float], percentiles: Sequence[float]
) -> dict[str, float]:
    """mean_, median_, std_ (of the population), max_ and p.._{name}_ms; zeros of no values."""
    values_ms = np.array(values_s or [0.0]) * MS
    made = {
        f"mean_{name}_ms": float(values_ms.mean()),
        f"median_{name}_ms": float(np.median(values_ms)),
        f"std_{name}_ms": float(values_ms.std()),
        f"max_{name}_ms": float(values_ms.max()),
    }
    for percentile in percentiles:
        made[f"p{percentile:g}_{name}_ms"] = float(np.percentile(values_ms, percentile))
    return made


def peak_tokens_per_s(good: Sequence[Outcome]) -> float:
    """The most in any second, counted from the first request's sending; a chunk whose tokens are
    not told counts as its request's mean."""
    if not good:
        return 0.0
    first_s = min(outcome.sent_s for outcome in good)
    times_s: list[float] = []
    tokens: list[float] = []
    for outcome in good:
        n_chunks = len(outcome.chunk_times_s)
        times_s += outcome.chunk_times_s
        tokens += outcome.chunk_tokens or [outcome.output_tokens / n_chunks] * n_chunks
    seconds = (np.array(times_s) - first_s).astype(int)
    return float(np.bincount(seconds, weights=tokens).max())


def peak_concurrency(good: Sequence[Outcome]) -> int:
    """The most requests between sending and last token at once."""
    steps = [(outcome.sent_s, 1) for outcome in good]
    steps += [(outcome.chunk_times_s[-1], -1) for outcome in good]
    running = most = 0
    for _, step in sorted(steps):
        running += step
        most = max(most, running)
    return most


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
