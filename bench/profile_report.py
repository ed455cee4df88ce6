"""What `baton profile` found, as a table, and what a reader must know before believing it. Pure.

Must not measure or fit.
"""

from bench.profile_fit import LEAST_S, UNSEEN_BYTES_PER_S
from bench.simulate.costs_file import CostsFile

UNSEEN = "not measurable"
POOR_ERROR = 0.1  # a median above it
_NEARLY = 1.001  # the bounds of a fit come back from divisions


def table(file: CostsFile) -> str:
    """In units that fit. A cost that is only the bound of its fit is told as `UNSEEN`."""
    us, ms = 1e6, 1e3
    told = file.measured
    least_token_s = LEAST_S / int(told["budget_tokens"])
    rows = [
        _cost("prefill, a pass", file.prefill.fixed_s, ms, "ms"),
        _cost("prefill, a token", file.prefill.per_token_s, us, "us", least=least_token_s),
        _cost("prefill, a pair of tokens", file.prefill.per_pair_s, 1e9, "ns"),
        _row("prefill, median error of the fit", 100 * float(told["prefill_error_median"]), "%"),
        _cost("decode, a step", file.decode.fixed_s, ms, "ms", least=LEAST_S),
        _cost("decode, a token of context", file.decode.per_context_token_s, us, "us"),
        _cost("decode, a sequence", file.decode.per_sequence_s, ms, "ms"),
        _row("decode, median error of the fit", 100 * float(told["decode_error_median"]), "%"),
        _cost("transfer, latency", file.transfer.latency_s, ms, "ms"),
        _bandwidth(file.transfer.bytes_per_s),
        _cost("a request, beside passes", file.request_s, ms, "ms"),
        _cost("a token, beside passes", file.token_s, ms, "ms"),
        _row("prefill takes longer beside decode by", float(told["prefill_slowdown"]), "x"),
        _row("decode takes longer beside prefill by", float(told["decode_slowdown"]), "x"),
    ]
    return "\n".join(rows)


def poor_fits(file: CostsFile) -> list[str]:
    """A line for each fit that says little, with the remedy."""
    errors = {name: float(file.measured[f"{name}_error_median"]) for name in ("prefill", "decode")}
    return [
        f"the fit of {name} is poor: its median error is {100 * error:.0f} %, over "
        f"{100 * POOR_ERROR:.0f} %; the machine was busy: run it again, with --rounds 3"
        for name, error in errors.items()
        if error > POOR_ERROR
    ]


def _cost(name: str, seconds: float, scale: float, unit: str, *, least: float = 0.0) -> str:
    """`least`: what the fit makes of a cost that it does not see."""
    return _unseen(name) if seconds <= least * _NEARLY else _row(name, seconds * scale, unit)


def _bandwidth(bytes_per_s: float) -> str:
    name = "transfer, bandwidth"
    is_unseen = bytes_per_s * _NEARLY >= UNSEEN_BYTES_PER_S
    return _unseen(name) if is_unseen else _row(name, bytes_per_s / 1e9, "GB/s")


def _row(name: str, value: float, unit: str) -> str:
    return f"{name:38} {value:12.4g} {unit}"


def _unseen(name: str) -> str:
    return f"{name:38} {UNSEEN}"
