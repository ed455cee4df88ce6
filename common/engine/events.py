"""What goes into a core and what comes out: `core.step(now, events) -> Decision`.

A core decides; it does no I/O, reads no clock, holds no tensor. The shell around it (a process, or
the simulator) performs the actions in the order given, and calls `step` again when an event
arrives or `wake_at` passes. `now` is seconds on any monotonic clock of the shell's.
"""

from dataclasses import dataclass, field

from common.engine.plan import PassPlan, PassResult
from common.ids import InstanceId, PageId, StepId, TicketId, TransferId
from common.messages import AnyMessage, Hello, PageRef, Peer, RegionKey

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived. `sender` is the instance that the frame's connection belongs to."""

    sender: InstanceId
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class StepDone:
    """The pass is final: its writes are complete and visible to other processes."""

    step: StepId
    result: PassResult
    ready_s: float = field(default=0.0, compare=False)
    """How long it had lain there when the device was free; below 0: the device waited for it."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """The pass raised. Its pages' contents are not to be trusted."""

    step: StepId
    detail: str


@dataclass(frozen=True, slots=True)
class TicketFinal:
    """The pull is final: no later write to local memory is possible. `ok` means validated."""

    ticket: TicketId
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A peer was welcomed (hello compared, values equal): it may be sent to and pulled from."""

    hello: Hello


@dataclass(frozen=True, slots=True)
class PeerDown:
    """That instance is gone for good. A later life has another instance id."""

    instance: InstanceId
    left: bool = field(default=False, compare=False)  # it said goodbye: nobody drove it out


@dataclass(frozen=True, slots=True)
class PeerBarred:
    """That instance must not be worked with: a hello named two values that differ."""

    instance: InstanceId
    detail: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Finish what is here; refuse what is new."""


Event = Received | StepDone | StepFailed | TicketFinal | PeerUp | PeerDown | PeerBarred | Drain

# --- actions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the pass, after those before it. A core has at most two unanswered Launches.

    The second may name tokens that the first draws. If the first fails, so may the second.
    """

    step: StepId
    plan: PassPlan


@dataclass(frozen=True, slots=True)
class Pull:
    """Copy pages from a peer's region into the own pool: (remote page, generation) -> local."""

    ticket: TicketId
    peer: InstanceId
    remote: RegionKey
    copies: tuple[tuple[PageRef, PageId], ...]


@dataclass(frozen=True, slots=True)
class Spill:
    """Host memory pulls pages of the own pool: (page, generation) -> host page.

    Answered by TicketFinal, as a Pull is; a Pull brings them back.
    """

    ticket: TicketId
    copies: tuple[tuple[PageRef, PageId], ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ask a pull to stop; its TicketFinal still comes."""

    ticket: TicketId


@dataclass(frozen=True, slots=True)
class Connect:
    """Get to know a peer: answered by PeerUp, PeerBarred or PeerDown. Idempotent."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Send:
    """Send to a known peer. The shell may fail to (full or cut link): digests make up for it."""

    peer: InstanceId
    message: AnyMessage


@dataclass(frozen=True, slots=True)
class Note:
    """Something happened in a request's life: one line of the request log, one metric.

    `name` is one of NOTES.
    """

    transfer: TransferId
    attempt: int
    name: str
    fields: dict[str, int | float | str] = field(default_factory=dict[str, int | float | str])


Action = Launch | Pull | Spill | Cancel | Connect | Send | Note

NOTES = (
    "received",  # gateway: the request is validated and tokenised
    "routed",  # gateway: an attempt begins; decision=remote, or local: decode computes the prompt;
    # prefill, decode: to which instances
    "queued",  # prefill or decode: accepted
    "context_begin",  # prefill: first chunk launched
    "pages_ready",  # prefill: pages announced
    "context_end",  # prefill: last chunk computed
    "migration_begin",  # decode: first pull started
    "pages_pulled",  # decode: a pull is final
    "migration_end",  # decode: last page pulled and validated
    "first_token",  # gateway: token 0 sent to the client
    "decoding_begin",  # decode: joined the batch
    "preempted",  # decode: its pages were taken; how=host, or recompute
    "resumed",  # decode: it has pages again
    "decoding_end",  # decode: last token drawn
    "failed",  # any: this attempt ended early
    "aborted",  # any: freed before its end
    "finished",  # gateway: the answer is complete
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now, and when to ask again at the latest (None: not before the next event)."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
