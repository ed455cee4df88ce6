"""Which workers serve a request: least predicted cost. Pure: views in, a route out.

Pairs, and decode workers that compute the prompt themselves (conditional disaggregation, as Dynamo
calls it), are priced alike (`launch.gateway.prices`). Where a request states SLOs, routes that are
predicted to meet them come before those that are not. Looks at every worker, not at every pair.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto

from common.ids import InstanceId
from common.values import Disaggregate
from launch.gateway.prices import Price, Prices
from launch.gateway.views import Demand, WorkerView

Pair = tuple[InstanceId, InstanceId]
"""(prefill, decode)"""


class Reason(StrEnum):
    """Why a prompt goes to prefill workers or stays on the decode side."""

    FLAG = auto()  # --disaggregate says so
    ONLY = auto()  # there is nobody else: no usable pair, or no decode worker that has not refused
    SLO = auto()  # the other way is predicted to miss more of what is owed
    COST = auto()  # the other way is predicted to cost more


@dataclass(frozen=True, slots=True)
class Route:
    """The chosen workers. `prefill` None: the decode worker computes the prompt itself."""

    prefill: InstanceId | None
    decode: InstanceId
    decode_cached_tokens: int
    in_time: bool = True  # its predicted TTFT is what is owed, or less
    ttft_s: float = field(default=0.0, compare=False)  # that prediction
    reason: Reason = Reason.FLAG

    @property
    def computing(self) -> InstanceId:
        """Who computes the prompt."""
        return self.decode if self.prefill is None else self.prefill

    @property
    def decision(self) -> str:
        """Where that is, for logs and metrics."""
        return "local" if self.prefill is None else "remote"


def route(
    demand: Demand,
    prefills: Sequence[WorkerView],
    decodes: Sequence[WorkerView],
    barred: Collection[Pair] = (),
    *,
    disaggregate: Disaggregate = "auto",
    refused: Collection[InstanceId] = (),
) -> Route | None:
    """The cheapest of the routes that miss the fewest SLOs, ties by instance id; None: none.

    `refused`: workers that would not have this request. A decode worker of these does not compute
    the prompt where others can.
    """
    usable = () if disaggregate == "never" else prefills
    prices = Prices(demand, usable, decodes, refused)
    remote = _cheapest(_pairs(prices, usable, decodes, barred))
    willing = [d for d in decodes if d.instance not in refused]
    if remote is not None and disaggregate == "always":
        willing = []
    elif remote is None and not willing:
        willing = list(decodes)
    local = _cheapest(prices.local(view, shield=remote is not None) for view in willing)
    best = _cheapest(one for one in (remote, local) if one is not None)
    if best is None:
        return None
    return Route(
        prefill=None if best.prefill is None else best.prefill.instance,
        decode=best.decode.instance,
        decode_cached_tokens=prices.cached_pages(best.decode) * best.decode.page_tokens,
        in_time=not best.late,
        reason=_reason(remote, local, disaggregate),
        ttft_s=best.ttft_s,
    )


def _pairs(
    prices: Prices,
    prefills: Sequence[WorkerView],
    decodes: Sequence[WorkerView],
    barred: Collection[Pair],
) -> Iterable[Price]:
    """Of every decode worker its cheapest. They differ by the prefill side alone, and that depends
    on the decode side only by how many pages it holds: one search for each such number."""
    best_by_cached: dict[int, WorkerView | None] = {}
    with_bars = {decode for _, decode in barred}
    for decode in decodes:
        n_cached = prices.cached_pages(decode)
        if decode.instance in with_bars:
            usable = [p for p in prefills if (p.instance, decode.instance) not in barred]
            prefill = _best(prices, usable, n_cached)
        elif n_cached in best_by_cached:
            prefill = best_by_cached[n_cached]
        else:
            prefill = best_by_cached[n_cached] = _best(prices, prefills, n_cached)
        if prefill is not None:
            yield prices.remote(decode, prefill)


def _best(prices: Prices, prefills: Sequence[WorkerView], n_cached: int) -> WorkerView | None:
    return min(prefills, key=lambda view: prices.computing(view, n_cached), default=None)


def _cheapest(priced: Iterable[Price]) -> Price | None:
    return min(priced, key=lambda price: price.rank, default=None)


def _reason(remote: Price | None, local: Price | None, disaggregate: Disaggregate) -> Reason:
    if disaggregate == "never" or (disaggregate == "always" and remote is not None):
        return Reason.FLAG
    if remote is None or local is None:
        return Reason.ONLY
    return Reason.COST if remote.missed == local.missed else Reason.SLO
