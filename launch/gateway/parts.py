"""What one gateway of a server knows for `GET /status`, and no other does: several make a whole.

Travels between gateways of one launcher as msgpack (JSON has no infinity, which buckets end at).
Must hold declarations only.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from common.metrics import Totals
from launch.gateway.figures import Sampled
from launch.gateway.status import Load, RequestStatus

BESIDE_S = 3.0  # that two gateways' slices may be apart, to be shown as one


class Slice(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One second or so. Rates and values are of the last seconds."""

    unix_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    ttft_s: Sampled
    tpot_s: Sampled
    workers: dict[str, Load]  # by name; as every gateway knows them


class Judged(NamedTuple):
    """Answers that were owed something, and how many of them got it."""

    n: int = 0
    met: int = 0


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """Of one gateway. What is of a window is of this gateway's, `window_s` long."""

    uptime_s: float
    window_s: float
    in_progress: int  # HTTP requests
    ttft_s: Sampled
    tpot_s: Sampled
    e2e_s: Sampled
    handoff_s: Sampled
    slo: Judged  # by all that was owed
    slo_ttft: Judged
    slo_tpot: Judged
    first: Totals  # as the window began
    last: Totals
    requests: list[RequestStatus]  # those in progress, then those that have ended; latest first
    series: list[Slice]  # those that were asked for, in order


class Elsewhere(NamedTuple):
    """What the other gateways have answered."""

    parts: list[Part]
    missing: dict[str, str]  # those that have not, by name, and why


AskElsewhere = Callable[[float], Awaitable[Elsewhere]]
"""Called with the Unix time after which a series is wanted. Answers within a second or so."""


async def nobody_else(_after: float) -> Elsewhere:
    """There is one gateway."""
    return Elsewhere([], {})
