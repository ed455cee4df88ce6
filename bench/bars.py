"""What the engine must reach, as rows over measured figures. Pure.

Absolute bars were set on a machine that reads its memory at 70 GB/s and multiplies bfloat16 at
827 GFLOP/s. On a slower one such a bar grows by this machine's floor, of the same run, over that
one's; a row's note says by how much.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

Figures = Mapping[str, float]

# Floors, ms, of the machine that the absolute bars were set on: bytes over 70 GB/s, or operations.
_REFERENCE_MS = {1: 3.95, 8: 4.7, 32: 10.8, 64: 3.9, 2048: 4.6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One bar. `least`: the measured figure must reach it; else it must not pass it."""

    name: str
    unit: str
    measured: float
    bar: float
    least: bool = False
    floor: float | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        return self.measured >= self.bar if self.least else self.measured <= self.bar

    @property
    def over_floor(self) -> float | None:
        """How many times the floor; for a rate, how many times slower than it could be."""
        if self.floor is None:
            return None
        return self.floor / self.measured if self.least else self.measured / self.floor

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met, "over_floor": self.over_floor}


def rows(figures: Figures) -> list[Row]:
    """Those that the figures suffice for: peers' rows need peers."""
    made = [*_steps(figures), *_solo(figures), *_at_once(figures), *_rest(figures)]
    return [row for row in made if row is not None]


def _scaled(
    name: str, ms: float, bar_ms: float, slower: float, floor_ms: float | None = None
) -> Row:
    """An absolute bar, on a machine whose floor is that many times the reference's."""
    scale = max(1.0, slower)
    note = f"bar {bar_ms:g} ms x {scale:.2f} for this machine's floor"
    return Row(name=name, unit="ms", measured=ms, bar=bar_ms * scale, floor=floor_ms, note=note)


def _decode(figures: Figures, n: int, at: int) -> tuple[float, float]:
    """A step's time and its floor."""
    label = f"decode, batch {n} at {at}"
    return figures[f"{label}: ms"], figures[f"{label}: floor_ms"]


def _steps(figures: Figures) -> list[Row]:
    made: list[Row] = []
    for n, bar_ms in ((1, 6.0), (8, 9.0), (32, 26.0)):
        ms, floor_ms = _decode(figures, n, 319)
        name = f"decode step alone, batch {n} at 320"
        made.append(_scaled(name, ms, bar_ms, floor_ms / _REFERENCE_MS[n], floor_ms))
    made.append(
        Row(
            name="prefill, packed 8 x 256, of the product rate",
            unit="GFLOP/s",
            measured=figures["packed_flops_per_s"] / 1e9,
            bar=0.8 * figures["linear_flops_per_s"] / 1e9,
            least=True,
            floor=figures["linear_flops_per_s"] / 1e9,
        )
    )
    return made


def _solo(figures: Figures) -> list[Row | None]:
    made: list[Row | None] = []
    for at, bar_ms in ((64, 6.8), (2048, 9.0)):
        floor_ms = _decode(figures, 1, at)[1]
        tpot, name = figures[f"tpot_{at}_ms"], f"TPOT, one stream, context {at}"
        made.append(_scaled(name, tpot, bar_ms, floor_ms / _REFERENCE_MS[at], floor_ms))
        made.append(
            _against(
                figures,
                f"llama_tpot_{at}_ms",
                name=f"TPOT, one stream, context {at}, against llama.cpp",
                unit="ms",
                measured=tpot,
                factor=0.9,
                floor=floor_ms,
            )
        )
    for n_tokens in (64, 512, 2048):
        made.append(
            _against(
                figures,
                f"openvino_ttft_{n_tokens}_ms",
                name=f"TTFT, one stream, prompt {n_tokens}",
                unit="ms",
                measured=figures[f"ttft_{n_tokens}_ms"],
                factor=1.25,
                plus=5.0,
                floor=figures[f"prefill, {n_tokens} after 0: floor_ms"],
            )
        )
    return made


def _ceiling(figures: Figures, n: int) -> float:
    """Output tokens per second if every pass of 256 in, 128 out ran at its floor."""
    prefill_ms = figures["prefill, 256 after 0: floor_ms"]
    request_ms = prefill_ms + 128 * _decode(figures, n, 319)[1] / n
    return 128e3 / request_ms


def _at_once(figures: Figures) -> list[Row | None]:
    made: list[Row | None] = []
    for n, factor in ((8, 1.2), (32, 1.1)):
        for kind in ("colocated", "split"):
            made.append(
                _against(
                    figures,
                    f"openvino_tokens_per_s_{n}",
                    name=f"{n} at once, {kind}: output tokens",
                    unit="tok/s",
                    measured=figures[f"{kind}_tokens_per_s_{n}"],
                    factor=factor,
                    least=True,
                    floor=_ceiling(figures, n),
                )
            )
    of_8, of_32 = (_decode(figures, n, 319)[1] / _REFERENCE_MS[n] for n in (8, 32))
    for kind in ("colocated", "split"):
        gap_ms = figures[f"{kind}_p99_itl_ms_8"]
        made.append(_scaled(f"8 at once, {kind}: p99 ITL", gap_ms, 21.0, of_8))
    gap_ms = figures["split_p99_itl_ms_32"]
    made.append(_scaled("32 at once, 1 x 1: p99 ITL", gap_ms, 80.0, of_32))
    return made


def _rest(figures: Figures) -> list[Row]:
    return [
        Row(
            name="sampled (0.8, top-p 0.95) over greedy, 32 at once",
            unit="ratio",
            measured=figures["sampled_tokens_per_s_32"] / figures["colocated_tokens_per_s_32"],
            bar=0.9,
            least=True,
        ),
        Row(
            name="handoff of 2,048 tokens: second token after first",
            unit="ms",
            measured=figures["handoff_gap_ms"],
            bar=figures["handoff_step_ms"] + 5.0,
            note="bar: a step of the 8 streams that decode, plus 5 ms",
        ),
        *(
            Row(
                name=f"gateway and control plane at 32, {kind}: part of CPU",
                unit="%",
                measured=100 * figures[f"{kind}_overhead_32"],
                bar=5.0,
            )
            for kind in ("colocated", "split")
        ),
    ]


def _against(  # noqa: PLR0913 - a row's fields, and what they are made of
    figures: Figures,
    peer: str,
    *,
    name: str,
    unit: str,
    measured: float,
    factor: float,
    plus: float = 0.0,
    least: bool = False,
    floor: float | None = None,
) -> Row | None:
    if peer not in figures:
        return None
    return Row(
        name=name,
        unit=unit,
        measured=measured,
        bar=figures[peer] * factor + plus,
        least=least,
        floor=floor,
        note=f"the peer: {figures[peer]:.1f}",
    )
