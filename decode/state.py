"""A handoff on the decode side: its phases, what moves it between them, and the records of it.

Must decide nothing: policy is `decode.scheduler`. A transfer has one or more samples; each is one
sequence with its own page table.
"""

from dataclasses import dataclass, field
from enum import StrEnum, auto

from common.errors import InvariantBroken
from common.ids import InstanceId, PageHash, PageId, StepId, TicketId, TransferId
from common.messages import Expect, Failed, PageRef, RegionKey
from common.params import FinishReason, SamplingParams, TokenLogprob

Key = tuple[TransferId, int]
"""(transfer, attempt)."""


class SpillPhase(StrEnum):
    """Where the pages of a sequence are that gave way, if not to be computed again."""

    SPILLING = auto()  # on their way to host memory
    SPILLED = auto()  # there
    RESTORING = auto()  # on their way back, into pages that it has been given


Who = tuple[TransferId, int, int]
"""Who brings a page: (transfer, attempt, sample) computes it, sample -1 pulls it."""


class Phase(StrEnum):
    """Where a transfer is."""

    QUEUED = auto()  # accepted; holds no pages and no room
    CALLING = auto()  # room is set aside; Accept is repeated until the prefill side answers
    PULLING = auto()  # it has answered; what it announces is pulled
    HANDED = auto()  # the Handoff is here; the last pages are still coming
    RUNNING = auto()  # its samples are computed here, a local prompt from its first token on
    DONE = auto()  # every sample has ended; outputs are kept, pages are not
    FAILED = auto()  # the gateway was told; no pages
    ENDED = auto()  # forgotten


class Event(StrEnum):
    """What happens to a transfer."""

    ADMITTED = auto()  # room was found; the prompt comes from a prefill worker
    STARTED = auto()  # room was found; the prompt is computed here
    ANSWERED = auto()  # the first PagesReady, or the Handoff in its place
    HANDED = auto()
    JOINED = auto()  # every page is here and validated
    FINISHED = auto()  # the last sample has ended
    BROKEN = auto()
    ENDED = auto()  # the gateway's End, a newer attempt, or the gateway is gone


NEXT: dict[tuple[Phase, Event], Phase] = {
    (Phase.QUEUED, Event.ADMITTED): Phase.CALLING,
    (Phase.QUEUED, Event.STARTED): Phase.RUNNING,
    (Phase.CALLING, Event.ANSWERED): Phase.PULLING,
    (Phase.PULLING, Event.HANDED): Phase.HANDED,
    (Phase.HANDED, Event.JOINED): Phase.RUNNING,
    (Phase.HANDED, Event.FINISHED): Phase.DONE,  # every sample ended at its handed token
    (Phase.RUNNING, Event.FINISHED): Phase.DONE,
    (Phase.CALLING, Event.BROKEN): Phase.FAILED,  # its prefill side is silent, or barred
    (Phase.PULLING, Event.BROKEN): Phase.FAILED,
    (Phase.HANDED, Event.BROKEN): Phase.FAILED,
    (Phase.RUNNING, Event.BROKEN): Phase.FAILED,
    (Phase.QUEUED, Event.ENDED): Phase.ENDED,
    (Phase.CALLING, Event.ENDED): Phase.ENDED,
    (Phase.PULLING, Event.ENDED): Phase.ENDED,  # pages wait for their tickets' fences
    (Phase.HANDED, Event.ENDED): Phase.ENDED,
    (Phase.RUNNING, Event.ENDED): Phase.ENDED,  # pages wait for the running step's fence
    (Phase.DONE, Event.ENDED): Phase.ENDED,  # the End acknowledges the last token
    (Phase.FAILED, Event.ENDED): Phase.ENDED,
}

ARRIVING = (Phase.CALLING, Phase.PULLING, Phase.HANDED)


def step_fence(step: StepId) -> tuple[str, StepId]:
    """Final when the step is."""
    return ("step", step)


def ticket_fence(ticket: TicketId) -> tuple[str, TicketId]:
    """Final when the pull is."""
    return ("ticket", ticket)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    rows = [f"    {a} --> {b}: {event}" for (a, event), b in NEXT.items()]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {Phase.QUEUED}", *rows])


@dataclass(slots=True, eq=False)
class Table:
    """A sequence's pages, in token order, with one hold on each; and the room kept for more."""

    pages: list[PageId] = field(default_factory=list[PageId])
    n_kv: int = 0  # leading tokens whose KV is in the pages
    n_published: int = 0  # leading pages that the prefix index knows
    claim: int = 0  # pages promised to it and not taken yet
    # What unanswered passes do. Read by whoever plans the next one, which follows them.
    n_ahead: int = 0  # tokens, from n_kv on, whose KV they write
    n_unread: int = 0  # tokens that they draw; 1 at most while a pass is planned
    draw: int = 0  # of the last one's draws: which is that
    step: StepId | None = None  # the last that reads or writes the pages
    place: int | None = None  # `decode.tables`' row
    n_placed: int = 0  # leading pages that are written there


@dataclass(slots=True, eq=False)
class Spilled:
    """A sequence's pages in host memory."""

    phase: SpillPhase
    pages: tuple[PageId, ...]  # of host memory, in token order from the first on
    n_kv: int  # leading tokens whose KV is in them
    ticket: TicketId | None  # of the copy that is not final


@dataclass(slots=True, eq=False)
class Sample:
    """One sequence: what it said so far, and where its KV is."""

    transfer: "Transfer"
    number: int
    first_index: int  # outputs below it are earlier attempts'
    outputs: tuple[int, ...]
    finish: FinishReason | None = None
    table: Table = field(default_factory=Table)
    hashes: list[PageHash] = field(default_factory=list[PageHash])  # of full pages, in order
    followers: "list[Sample]" = field(default_factory=list["Sample"])  # drawn from its first row
    waiting: bool = False  # has no pages, and wants to be computed
    wants: tuple[PageHash, ...] = ()  # while it waits: what the pool should keep for it
    preempted: bool = False  # has lost its pages at least once
    spilled: Spilled | None = None
    cached: int = 0  # prompt tokens found, not computed, before anything was lost
    # What the gateway has had. Outputs below `sent` were sent; below `acked` they arrived.
    sent: int = 0
    acked: int = 0
    listed: int | None = None  # an index behind `sent` that the gateway listed the last time
    logprobs: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    logprobs_from: int = 0  # output index of logprobs[0]

    @property
    def prompt(self) -> tuple[int, ...]:
        return self.transfer.request.prompt

    @property
    def params(self) -> SamplingParams:
        return self.transfer.request.params

    @property
    def age(self) -> tuple[int, int]:
        """Ascending from the oldest."""
        return (self.transfer.arrival, self.number)

    @property
    def who(self) -> Who:
        return (*self.transfer.key, self.number)

    @property
    def n_tokens(self) -> int:
        """Of prompt and outputs."""
        return len(self.transfer.request.prompt) + len(self.outputs)

    @property
    def gap(self) -> int:
        """Tokens to compute before the next can be drawn; 1 while it decodes.

        Unanswered passes are taken for granted.
        """
        table = self.table
        n_tokens = len(self.transfer.request.prompt) + len(self.outputs)
        return n_tokens + table.n_unread - table.n_kv - table.n_ahead

    @property
    def restoring(self) -> bool:
        """Its pages are being written: nobody may read them or take them away."""
        return self.spilled is not None and self.spilled.phase is SpillPhase.RESTORING

    @property
    def scores(self) -> bool:
        """It is still to compute the log-probabilities of the prompt's tokens: nothing is reused.

        One sample does so for all, and not where the prefill side has.
        """
        transfer = self.transfer
        if self.params.prompt_logprobs is None or transfer.request.prefill is not None:
            return False
        return self is transfer.samples[0] and len(self.outputs) == self.first_index

    def tokens(self, start: int, end: int) -> tuple[int, ...]:
        """Ids at positions start .. end - 1 of prompt + outputs."""
        prompt = self.transfer.request.prompt
        n = len(prompt)
        if start >= n:
            return self.outputs[start - n : end - n]
        return (*prompt[start:end], *self.outputs[: max(0, end - n)])


@dataclass(slots=True, eq=False)
class Arrival:
    """A page that the prefill side has announced."""

    ref: PageRef
    page: PageId | None = None  # None: somebody else is bringing a page of the same hash
    ticket: TicketId | None = None  # the pull that is writing it
    valid: bool = False


@dataclass(slots=True, eq=False)
class Transfer:
    """One attempt of one transfer. Everything that is known of it, in one place."""

    request: Expect
    gateway: InstanceId
    arrival: int  # ascending in its process: the order of all that run
    whole_pages: int  # of one sample that says all it may
    queued_after: int = 0  # passes
    turn: float = 0.0  # ascending: the order of those that wait for room; `scheduler.turn`
    hashes: tuple[PageHash, ...] = ()  # full pages of the tokens that all samples share
    phase: Phase = Phase.QUEUED
    samples: list[Sample] = field(default_factory=list[Sample])
    trunk: Table = field(default_factory=Table)  # pages found here, told in the Accept
    arrivals: list[Arrival] = field(default_factory=list[Arrival])  # they follow the trunk's
    n_arrivals_held: int = 0  # of these, with a page
    remote: RegionKey | None = None  # where to pull from
    accepted: bool = False  # an Accept was sent
    released: bool = False  # and a Release
    knock_at: float | None = None  # when to send the (next) Accept
    knock_s: float = 0.0  # until the one after it
    n_pulled: int = 0  # pages that were pulled for it
    cached: int | None = None  # tokens not computed by whoever drew the first token
    scored: list[TokenLogprob] = field(default_factory=list[TokenLogprob])  # prompt's, from here
    failure: Failed | None = None

    @property
    def key(self) -> Key:
        return (self.request.transfer, self.request.attempt)

    @property
    def pages(self) -> list[PageId]:
        """Held for its prompt while that is arriving."""
        return self.trunk.pages + [a.page for a in self.arrivals if a.page is not None]

    @property
    def n_tokens(self) -> int:
        """Tokens that all samples share: prompt, and the outputs of a single sample."""
        samples = self.request.samples
        return len(self.request.prompt) + (len(samples[0].outputs) if len(samples) == 1 else 0)

    def on(self, event: Event) -> None:
        """Move along the table; any pair that is not in it is a bug."""
        following = NEXT.get((self.phase, event))
        if following is None:
            raise InvariantBroken(f"{self.request.transfer}: {event} while {self.phase}")
        self.phase = following
