"""A prompt on the prefill side: its phases, what moves it between them, and its record.

Must decide nothing: policy is `prefill.scheduler`, leases are `prefill.handoff`.
"""

from dataclasses import dataclass, field
from enum import StrEnum, auto

from common.errors import InvariantBroken
from common.ids import InstanceId, PageHash, PageId, StepId, TicketId, TransferId
from common.messages import Accept, HandedToken, Prefill
from common.params import TokenLogprob


class Phase(StrEnum):
    """Where a prompt is."""

    WAITING = auto()  # queued; holds no pages
    FETCHING = auto()  # all its pages are reserved; some come from the decode side's pool
    RUNNING = auto()  # reserved; part of it is computed, or about to be
    COMPUTED = auto()  # KV complete, first tokens drawn; decode may be reading, or yet to accept
    ANSWERED = auto()  # every sample ended at its first token; decode never sees it; no pages
    FAILED = auto()  # the gateway was told; no pages
    RETIRED = auto()  # forgotten


class Event(StrEnum):
    """What happens to a prompt."""

    RESERVED = auto()  # pages taken, nothing to fetch
    FETCH = auto()  # pages taken, a pull of a prefix started
    FETCHED = auto()  # the pull is final, whatever became of it
    COMPUTED = auto()  # the last chunk's step is done
    ANSWERED = auto()  # the same, and no sample goes on
    SET_BACK = auto()  # its pages are needed by one that decode has accepted
    BROKEN = auto()  # a pass raised
    RELEASED = auto()  # decode has read all it will
    ENDED = auto()  # the gateway's End, or the gateway is gone


NEXT: dict[tuple[Phase, Event], Phase] = {
    (Phase.WAITING, Event.RESERVED): Phase.RUNNING,
    (Phase.WAITING, Event.FETCH): Phase.FETCHING,
    (Phase.FETCHING, Event.FETCHED): Phase.RUNNING,  # a failed fetch is computed instead
    (Phase.RUNNING, Event.COMPUTED): Phase.COMPUTED,
    (Phase.RUNNING, Event.ANSWERED): Phase.ANSWERED,
    (Phase.RUNNING, Event.BROKEN): Phase.FAILED,
    (Phase.COMPUTED, Event.RELEASED): Phase.RETIRED,  # decode answers for the tokens from here
    (Phase.COMPUTED, Event.SET_BACK): Phase.WAITING,
    (Phase.WAITING, Event.ENDED): Phase.RETIRED,
    (Phase.FETCHING, Event.ENDED): Phase.RETIRED,  # the pages wait for the ticket's fence
    (Phase.RUNNING, Event.ENDED): Phase.RETIRED,  # the pages wait for the step's fence
    (Phase.COMPUTED, Event.ENDED): Phase.RETIRED,  # generations protect whoever reads
    (Phase.ANSWERED, Event.ENDED): Phase.RETIRED,  # the End acknowledges the tokens
    (Phase.FAILED, Event.ENDED): Phase.RETIRED,
}


def prompt_top(request: Prefill) -> int | None:
    """Alternatives to report per prompt token; None: they are not wanted, or the client has them
    since an earlier attempt."""
    return None if request.samples[0].outputs else request.params.prompt_logprobs


@dataclass(slots=True, eq=False)
class Prompt:
    """One attempt of one transfer. Everything that is known of it, in one place."""

    request: Prefill
    gateway: InstanceId
    arrived: float  # seconds, the core's clock
    due: float  # when its first token is owed; orders the queue, never changes
    tokens: tuple[int, ...]  # prompt + accepted outputs: what is computed
    hashes: tuple[PageHash, ...]  # of its full pages
    reusable: int  # leading pages that may come from a cache: the last token is always computed
    predicted_s: float | None = None  # from arrival to the first token; None: nobody asked
    phase: Phase = Phase.WAITING
    pages: list[PageId] = field(default_factory=list[PageId])  # whole prompt, once reserved
    done: int = 0  # tokens whose KV is in the pages
    planned: int = 0  # done, and what unanswered steps add
    cached: int = 0  # tokens found, not computed
    published: int = 0  # full pages known to the prefix index
    wants: bool = False  # the pool keeps what it has of the reusable pages, if it can
    accept: Accept | None = None  # decode has room; None before, and after its Release
    step: StepId | None = None  # the last of the unanswered steps that write its pages
    ticket: TicketId | None = None  # the fetch
    fetching: tuple[int, int] = (0, 0)  # page-table range that the fetch fills
    handed: tuple[HandedToken, ...] = ()  # the first tokens, once drawn
    scored: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    failure: str = ""  # why it failed
    failed_alone: bool = False  # in a pass that nobody shared
    seen_behind: bool = False  # the gateway listed too low an index once already

    @property
    def transfer(self) -> TransferId:
        return self.request.transfer

    @property
    def attempt(self) -> int:
        return self.request.attempt

    @property
    def key(self) -> tuple[TransferId, int]:
        return (self.request.transfer, self.request.attempt)

    @property
    def remaining(self) -> int:
        """Tokens not yet computed nor being computed."""
        return len(self.tokens) - self.planned

    def on(self, event: Event) -> None:
        """Move along the table; any pair that is not in it is a bug."""
        following = NEXT.get((self.phase, event))
        if following is None:
            raise InvariantBroken(f"{self.transfer}: {event} while {self.phase}")
        self.phase = following
