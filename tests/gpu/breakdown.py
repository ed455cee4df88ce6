"""Where a pass's time goes on the device: kernel by kernel, and between them. For whoever looks for
the cause of a bar that was missed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from tests.gpu.rows import say

SHOWN, PRODUCTS_SHOWN, GAPS_SHOWN, NAME_CHARS = 16, 6, 4, 44
OURS = (
    "_attend_split", "_merge_splits", "_attend_tile", "_rms_norm", "_rope_and_write", "_silu_mul",
    "_sample", "_uniforms", "_copy_runs", "_find", "_merge", "_weigh",
)  # fmt: skip
OF_TORCH = ("at::native", "Memcpy", "Memset", "elementwise")
PRODUCTS = "products of matrices"


@dataclass(frozen=True, slots=True)
class Ran:
    """Of a kernel or a copy; microseconds."""

    name: str
    began: float
    ended: float


def kind_of(name: str) -> str:
    """Our kernel's name, or torch's; all others are the vendor's products."""
    for known in (*OURS, *OF_TORCH):
        if known in name:
            return name[:NAME_CHARS] if known in OF_TORCH else known
    return PRODUCTS


def recorded(run: Callable[[], object]) -> list[Ran]:
    """All that the device does meanwhile, in order."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = profiler.events() or []
    ran = [
        Ran(event.name, event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == DeviceType.CUDA and not event.is_user_annotation
    ]
    return sorted(ran, key=lambda r: r.began)


def lines(
    ran: Sequence[Ran], n_times: int, amounts: Mapping[str, tuple[float, str]] | None = None
) -> list[str]:
    """For people. `amounts` that the kernels of a kind move or compute each time, and their unit a
    second: (1e9, "TB/s") is a GB, shown in TB/s."""
    if not ran:
        return ["  the profiler saw no kernel"]
    by_kind: dict[str, list[float]] = {}
    for r in ran:
        by_kind.setdefault(kind_of(r.name), []).append(r.ended - r.began)
    wall = (max(r.ended for r in ran) - ran[0].began) / n_times
    busy = _union(ran) / n_times
    said = [
        f"  {wall / 1e3:.3f} ms each: {busy / 1e3:.3f} in {len(ran) / n_times:.0f} kernels, "
        f"{(wall - busy) / 1e3:.3f} between them"
    ]
    order = sorted(by_kind, key=lambda kind: -sum(by_kind[kind]))
    for kind in order[:SHOWN]:
        took = sum(by_kind[kind]) / n_times
        n = len(by_kind[kind]) / n_times
        said.append(
            f"  {kind:<{NAME_CHARS}} {took / 1e3:9.3f} ms {took / wall:5.1%} {n:7.1f} times "
            f"{took / n:9.2f} us{_rate(kind, took, amounts or {})}"
        )
    return said + _products(ran, n_times) + _widest_gaps(ran)


def show(
    title: str,
    run: Callable[[], object],
    n_times: int,
    amounts: Mapping[str, tuple[float, str]] | None = None,
) -> None:
    """`run` does it so many times."""
    say(f"{title}:")
    for line in lines(recorded(run), n_times, amounts):
        say(line)


def _rate(kind: str, took_us: float, amounts: Mapping[str, tuple[float, str]]) -> str:
    if kind not in amounts:
        return ""
    amount, unit = amounts[kind]
    return f" {amount / took_us / 1e6:8.2f} {unit}"


def _union(ran: Sequence[Ran]) -> float:
    """Microseconds in which anything ran."""
    total, until = 0.0, ran[0].began
    for r in ran:
        total += max(0.0, r.ended - max(r.began, until))
        until = max(until, r.ended)
    return total


def _products(ran: Sequence[Ran], n_times: int) -> list[str]:
    """The vendor's kernels by their names."""
    by_name: dict[str, list[float]] = {}
    for r in ran:
        if kind_of(r.name) == PRODUCTS:
            by_name.setdefault(r.name, []).append(r.ended - r.began)
    order = sorted(by_name, key=lambda name: -sum(by_name[name]))
    said: list[str] = []
    for name in order[:PRODUCTS_SHOWN]:
        took, n = sum(by_name[name]), len(by_name[name])
        each = f"{took / n_times / 1e3:9.3f} ms {n / n_times:7.1f} times {took / n:9.2f} us"
        said.append(f"    {each}  {name[:90]}")
    return said


def _widest_gaps(ran: Sequence[Ran]) -> list[str]:
    gaps: list[tuple[float, str, str]] = []
    until, before = ran[0].ended, ran[0].name
    for r in ran[1:]:
        gaps.append((r.began - until, before, r.name))
        if r.ended > until:
            until, before = r.ended, r.name
    gaps.sort(key=lambda gap: -gap[0])
    return [
        f"    nothing ran for {us:.1f} us: {a[:50]} -> {b[:50]}" for us, a, b in gaps[:GAPS_SHOWN]
    ]
