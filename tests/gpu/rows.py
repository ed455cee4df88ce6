"""What is measured on a GPU, beside its floor and the bar that it must reach."""

import json
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum, auto


class Kind(StrEnum):
    """How a bar counts."""

    SHARE = auto()  # floor / measured, at least
    TIMES = auto()  # measured / floor, at most
    MOST = auto()  # measured, at most
    LEAST = auto()  # measured, at least


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row that every run has to have."""

    title: str
    kind: Kind
    bar: float


N_PROMPTS = 24
WANTED = {
    "tokens": Wanted(
        "SmolLM2's shape, float32: prompts answered as transformers", Kind.LEAST, N_PROMPTS
    ),
    "decode attention": Wanted("decode attention, 64 at 8192, 2 GiB of KV", Kind.SHARE, 0.85),
    "step 1": Wanted("decode step, 1 at 1024", Kind.TIMES, 1.15),
    "step 64": Wanted("decode step, 64 at 2048", Kind.TIMES, 1.2),
    "prompt": Wanted("prefill, one pass of 8192 tokens", Kind.SHARE, 0.65),
    "prefill attention": Wanted("prefill attention, 16384 causal", Kind.SHARE, 0.5),
    "pull": Wanted("pull by CUDA IPC, 256 scattered of 2 MiB", Kind.SHARE, 0.8),
    "second token": Wanted("second token beyond a decode step, prompt of 4096", Kind.MOST, 2.0),
    "busy": Wanted("a decode worker's step with 64: the device's part", Kind.SHARE, 0.97),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`floor`: what the bytes or operations take at the device's own rate. `key`: of `WANTED`,
    whose bar it must reach; None: it is only reported."""

    name: str
    measured: float
    unit: str = "ms"
    floor: float | None = None
    key: str | None = None

    @staticmethod
    def of(key: str, measured: float, *, unit: str = "ms", floor: float | None = None) -> "Row":
        """A row that is wanted."""
        return Row(name=WANTED[key].title, measured=measured, unit=unit, floor=floor, key=key)

    @property
    def ratio(self) -> float | None:
        """As the bar counts it; else measured over floor."""
        if self.key is not None and WANTED[self.key].kind in (Kind.MOST, Kind.LEAST):
            return self.measured
        if not self.floor:
            return None
        is_share = self.key is not None and WANTED[self.key].kind is Kind.SHARE
        return self.floor / self.measured if is_share else self.measured / self.floor

    @property
    def met(self) -> bool | None:
        """None: there is no bar, or no floor to hold it against."""
        if self.key is None or self.ratio is None:
            return None
        wanted = WANTED[self.key]
        if wanted.kind in (Kind.SHARE, Kind.LEAST):
            return self.ratio >= wanted.bar
        return self.ratio <= wanted.bar

    @property
    def line(self) -> str:
        floor = "" if self.floor is None else f"floor {self.floor:10.3f}"
        ratio = "" if self.ratio is None or self.ratio is self.measured else f"{self.ratio:.3f}"
        bar = ""
        if self.key is not None:
            wanted = WANTED[self.key]
            sign = ">=" if wanted.kind in (Kind.SHARE, Kind.LEAST) else "<="
            verdict = {True: "met", False: "MISSED", None: "no floor"}[self.met]
            bar = f"{wanted.kind} {sign} {wanted.bar:g}: {verdict}"
        return f"{self.name:<58} {self.measured:10.3f} {self.unit:<7} {floor:<16} {ratio:>7}  {bar}"

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.ratio, "met": self.met}


ROW = "ROW "  # what a line of a part begins with that is a row


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def emit(row: Row) -> None:
    """To whoever started this part."""
    say(ROW + json.dumps(asdict(row)))


def each(measurements: Iterable[Callable[[], object]]) -> bool:
    """One after the other, whichever fail; False: one has."""
    good = True
    for measure in measurements:
        try:
            measure()
        except Exception:  # noqa: BLE001 - said, and the others go on
            good = False
            say(traceback.format_exc())
    return good
