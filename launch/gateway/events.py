"""What goes into the gateway's core besides messages, and what comes out besides sends."""

from dataclasses import dataclass

import msgspec

from common.engine.events import Event, Note, Send
from common.errors import BatonError
from common.ids import InstanceId
from common.params import FinishReason, TokenLogprob
from launch.gateway.transfers import Generate, RequestId


@dataclass(frozen=True, slots=True)
class Submit:
    """A client's prompt."""

    generate: Generate


@dataclass(frozen=True, slots=True)
class StopSample:
    """The gateway's text side wants no more of this sample: a stop string."""

    request: RequestId
    sample: int


@dataclass(frozen=True, slots=True)
class Quit:
    """The client is gone, or has all it wants. Idempotent."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Crashed:
    """That worker has died by itself: not killed, not told to stop. Its PeerDown follows."""

    instance: InstanceId


GatewayEvent = Submit | StopSample | Quit | Crashed | Event


@dataclass(frozen=True, slots=True)
class Admitted:
    """Every worker has accepted: the answer may begin."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class Rejected:
    """There will be no (more) answer. `error` says who must act."""

    request: RequestId
    error: BatonError


class Delta(msgspec.Struct, frozen=True, gc=False):
    """New tokens of one sample, in order, each exactly once."""

    request: RequestId
    sample: int
    index: int  # of tokens[0]
    tokens: tuple[int, ...]
    finish: FinishReason | None
    logprobs: tuple[TokenLogprob, ...] = ()
    cached_tokens: int | None = None  # with the request's first delta
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # the same


GatewayAction = Send | Note | Admitted | Rejected | Delta


@dataclass(frozen=True, slots=True)
class GatewayDecision:
    """What to do now, in order, and when to ask again at the latest."""

    actions: tuple[GatewayAction, ...] = ()
    wake_at: float | None = None
