"""Ways to lay one model out over devices, and what requests see on each: rates in, latencies out.

A disaggregated layout is one cluster. Colocated workers share nothing but their dispatcher: a
request is dealt to the one with the least work before it, lengths known, and one of the workers is
run, the others being like it. So colocated layouts never lose by a dispatcher that guesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.simulate.costs import Costs, TransferCosts
from bench.simulate.published import PAGE_TOKENS, Device, Model, costs_of, n_pages
from bench.simulate.shape import Shape
from bench.simulate.timed import Ask, serve

MAX_NUM_SEQS = 256
LAG_SHARE = 0.05  # of a run that its last requests may wait, where the queue does not grow
EDGE_SHARE = 0.15  # of a run's requests, first and last, that find an emptier cluster: not judged


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What layouts are laid out over."""

    model: Model
    device: Device
    link: TransferCosts

    def costs(self, n_devices: int) -> Costs:
        return costs_of(self.model, self.device, n_devices, self.link)

    def n_pages(self, n_devices: int) -> int:
        return n_pages(self.model, self.device, n_devices)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Workers, and the devices that each of them takes."""

    name: str
    prefills: int  # 0: colocated
    decodes: int
    chunk_tokens: int  # of prompts in one pass
    prefill_devices: int = 1
    decode_devices: int = 1

    @property
    def n_devices(self) -> int:
        return self.prefills * self.prefill_devices + self.decodes * self.decode_devices

    @property
    def n_parts(self) -> int:
        """That share nothing."""
        return 1 if self.prefills else self.decodes


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Of one run [N requests, those of its edges apart]; inf: it never came."""

    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    keeps_up: bool  # else its queue grew from beginning to end: in the long run nobody is in time

    def attainment(self, ttft_s: float, tpot_s: float) -> float:
        """Share of requests that meet both."""
        if not self.keeps_up:
            return 0.0
        return float(np.mean((self.ttft_s <= ttft_s) & (self.tpot_s <= tpot_s)))


def run(layout: Layout, hardware: Hardware, asks: Sequence[Ask]) -> Seen:
    """`asks`: of all devices, in the order of their arrival."""
    if not layout.prefills:
        asks = _dealt(asks, layout.decodes, hardware.costs(layout.decode_devices))
    served = serve(asks, _shape(layout, hardware)).served
    ttft_s = np.array([np.inf if one.ttft_s is None else one.ttft_s for one in served])
    tpot_s = np.array([np.inf if one.tpot_s is None else one.tpot_s for one in served])
    n = len(served)
    lag_s = ttft_s[n - max(1, n // 10) :].mean()
    edge = int(EDGE_SHARE * n)
    return Seen(
        ttft_s=ttft_s[edge : n - edge],
        tpot_s=tpot_s[edge : n - edge],
        keeps_up=bool(lag_s <= LAG_SHARE * asks[-1].at_s),
    )


def _shape(layout: Layout, hardware: Hardware) -> Shape:
    """Each worker's pool fills its devices. A pass has room for the chunk beside all sequences."""
    is_colocated = layout.prefills == 0
    return Shape(
        prefills=layout.prefills,
        decodes=1 if is_colocated else layout.decodes,
        prefill_pages=hardware.n_pages(layout.prefill_devices),
        decode_pages=hardware.n_pages(layout.decode_devices),
        page_tokens=PAGE_TOKENS,
        chunk_tokens=layout.chunk_tokens,
        budget_tokens=layout.chunk_tokens + (MAX_NUM_SEQS if is_colocated else 0),
        decode_budget_tokens=layout.chunk_tokens + MAX_NUM_SEQS,
        caching=False,  # no two requests share a prefix
        disaggregate="always",
        max_num_seqs=MAX_NUM_SEQS,
        max_waiting=100_000,  # nobody is refused: whoever waits too long misses the SLO
        costs=hardware.costs(layout.prefill_devices),
        decode_costs=hardware.costs(layout.decode_devices),
    )


def _dealt(asks: Sequence[Ask], n_workers: int, costs: Costs) -> list[Ask]:
    """What the first of the workers gets, in order."""
    own: list[Ask] = []
    free_at_s = [0.0] * n_workers
    for ask in asks:
        number = free_at_s.index(min(free_at_s))
        n_prompt = len(ask.prompt)
        work_s = costs.prefill.seconds(n_prompt, n_prompt**2 / 2) - costs.prefill.fixed_s
        step_s = costs.decode.seconds(n_prompt, 1) - costs.decode.fixed_s
        work_s += ask.output_tokens * step_s
        free_at_s[number] = max(free_at_s[number], ask.at_s) + work_s
        if number == 0:
            own.append(ask)
    return own
