"""Every message that crosses a socket, who sends it to whom, and the protocol's number.

The unions are closed: a handler matches them to `assert_never`. Change one: raise `PROTOCOL`,
and the hello refuses an older peer. Must hold no behaviour.

Every message about a request carries (transfer, attempt); handling is idempotent; a message of
an older attempt is dropped and counted. Nothing is lost for good because a link dropped: each
pair's `Heartbeat` lists what its sender believes the two share, and the receiver answers each
difference:

- it is listed, and I have never heard of it or have forgotten it: `Gone`;
- I have it from you, and you do not list it: it is over, I free it;
- you are behind what I sent (`next_index`, `phase`): I send it again.

This is sound because messages of one sender to one receiver arrive in order or not at all: they
are numbered (but for `Hello` and `HelloRefused`), and `common.wire` drops what is late.
"""

from enum import StrEnum, auto
from typing import Annotated

import msgspec
from msgspec import Meta

from common.ids import HostId, InstanceId, PageHash, PageId, Role, TransferId
from common.moments import Mark
from common.params import FinishReason, SamplingParams, TokenLogprob
from common.parts import Message, Natural, Part, Positive

PROTOCOL = 8

# --- what requests are made of ---------------------------------------------------------------


class Resume(Part, frozen=True):
    """A sample of a request, and the outputs that its client already has."""

    sample: Natural  # 0 .. n - 1; part of the draw
    outputs: tuple[Natural, ...] = ()


class PageRef(Part, frozen=True):
    """A page to be read, and the generation its owner announced for it."""

    page: PageId
    generation: int


class RegionKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a peer needs to reach a region's pages. Crosses the wire; names its owner's instance."""

    owner: InstanceId
    host: HostId
    region: Natural  # number within its owner
    n_pages: Positive
    page_bytes: Positive  # stride: a multiple of 4096
    doors: dict[str, str]  # transport's name -> address there


# --- who is there ----------------------------------------------------------------------------


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process and where its control socket listens."""

    instance: InstanceId
    role: Role
    host: HostId
    endpoints: tuple[str, ...]  # ZeroMQ addresses, nearest first


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What two workers must agree on to exchange pages. In bf16 weight formats may differ."""

    name: str
    fingerprint: str  # name and weights' source
    kv_dtype: str  # `sizing.kv_name`
    page_layout: str  # KVSpec.describe()
    kernel_path: str  # in float32, where the path must not change the answer; else ""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker's bounds; may differ between workers."""

    n_pages: Positive
    page_tokens: Positive
    max_model_len: Positive
    max_num_seqs: Positive
    max_num_batched_tokens: Positive
    max_waiting: Natural  # transfers it will queue before it refuses


class Hello(Message, frozen=True, kw_only=True):
    """any -> any: the first message on a connection, repeated until `Welcome` or `HelloRefused`"""

    protocol: int
    peer: Peer
    model: ModelIdentity | None  # None: a gateway that computes nothing
    limits: Limits | None  # None: a gateway
    pool: RegionKey | None  # None: a gateway


class Welcome(Message, frozen=True, kw_only=True):
    """any -> any: answers a Hello with one's own"""

    hello: Hello


class HelloRefused(Message, frozen=True, kw_only=True):
    """any -> any: we must not work together; both values are named"""

    field: str
    ours: str
    theirs: str


class Goodbye(Message, frozen=True, kw_only=True):
    """any -> any: I am leaving; nothing of mine will follow"""


class PeerLost(Message, frozen=True, kw_only=True):
    """gateway -> worker: that instance is dead; its leases are void, its Accepts will not come"""

    instance: InstanceId


class Phase(StrEnum):
    """How far a transfer is, as its lister sees it (the coarse view that peers need)."""

    WAITING = auto()  # sent or queued
    ACCEPTED = auto()  # decode: room is set aside; prefill: the decode side has accepted
    HANDED = auto()  # prefill: Handoff sent; decode: Handoff received
    DECODING = auto()
    DONE = auto()  # every sample has ended; kept until the gateway's End


class Listed(Part, frozen=True):
    """One line of a digest."""

    transfer: TransferId
    attempt: int
    phase: Phase
    next_index: tuple[tuple[int, int], ...] = ()  # (sample, first output index not yet had)


class Progress(Part, frozen=True):
    """A worker's pulse: hung is an age beyond a multiple of the prediction."""

    steps_done: int
    step_age_s: float  # 0 when no step runs
    predicted_s: float


class Heartbeat(Message, frozen=True, kw_only=True):
    """any -> any, on a timer: I live, and this is what I believe we share"""

    transfers: tuple[Listed, ...]
    progress: Progress | None = None  # workers
    credit_tokens: int | None = None  # gateway -> worker: tokens that may be unacknowledged
    snapshots: Natural | None = None  # worker -> gateway: the last one's `sequence`; 0: none


class Gone(Message, frozen=True, kw_only=True):
    """any -> any: you listed (or spoke of) a transfer that I do not have"""

    transfer: TransferId
    attempt: int


# --- the life of a request -------------------------------------------------------------------


class Prefill(Message, frozen=True, kw_only=True):
    """gateway -> prefill: compute this prompt and hand it to `decode`

    What is computed is prompt + outputs. Only a single sample may come with outputs.
    """

    transfer: TransferId
    attempt: int
    prompt: Annotated[tuple[Natural, ...], Meta(min_length=1)]
    samples: Annotated[tuple[Resume, ...], Meta(min_length=1)]
    params: SamplingParams
    decode: InstanceId
    salt: str = ""  # tenants with different salts never share pages
    decode_cached_tokens: int = 0  # hint: what `decode` probably holds already
    deadline_s: float | None = None  # from here to the first token, where an SLO states one
    refuse_if_late: bool = False  # no answer was promised yet: refuse what would miss `deadline_s`
    recovering: bool = False  # it was accepted, and has lost its workers: a place is kept for it
    alone: bool = False  # passes that it was in have failed: nobody shares its next ones
    priority: int = 0  # lower ones come first, in line and no further: nobody waits for ever


class Expect(Message, frozen=True, kw_only=True):
    """gateway -> decode: this request is coming from `prefill`; None: run the prompt yourself"""

    transfer: TransferId
    attempt: int
    prompt: Annotated[tuple[Natural, ...], Meta(min_length=1)]
    samples: Annotated[tuple[Resume, ...], Meta(min_length=1)]
    params: SamplingParams
    prefill: Peer | None
    salt: str = ""
    deadline_s: float | None = None  # as in `Prefill`: for a worker that runs the prompt itself
    refuse_if_late: bool = False  # the same
    recovering: bool = False  # the same
    alone: bool = False  # as in `Prefill`
    tpot_s: float | None = None  # mean seconds between two tokens that the request asks for
    priority: int = 0  # as in `Prefill`


class Accepted(Message, frozen=True, kw_only=True):
    """worker -> gateway: it is queued here"""

    transfer: TransferId
    attempt: int


class Refused(Message, frozen=True, kw_only=True):
    """worker -> gateway: it was never queued here

    With `predicted_ttft_s` it was refused since that is beyond `deadline_s`; if there is no
    `retry_after_s` then, it is what the prompt takes by itself, with nothing before it.
    """

    transfer: TransferId
    attempt: int
    reason: str
    retry_after_s: float | None  # None: to come again is no use
    predicted_ttft_s: float | None = None


class End(Message, frozen=True, kw_only=True):
    """gateway -> worker: this attempt is over (done, cancelled or superseded): free all, forget it

    Idempotent. It is also the acknowledgement of the last token.
    """

    transfer: TransferId
    attempt: int


class Accept(Message, frozen=True, kw_only=True):
    """decode -> prefill, repeated until answered: there is room; I hold these pages already

    Prefill says nothing to decode about a transfer before this.
    """

    transfer: TransferId
    attempt: int
    held: tuple[PageRef, ...]  # the leading full pages; pinned until the transfer ends


class PagesReady(Message, frozen=True, kw_only=True):
    """prefill -> decode, cumulative: these pages are final; pull them

    The first such message, even an empty one, answers the Accept.
    """

    transfer: TransferId
    attempt: int
    first: Natural  # index, in the sequence's page table, of pages[0]: the number held
    pages: tuple[PageRef, ...]


class HandedToken(Part, frozen=True):
    """The first token of a sample, drawn by the prefill side."""

    sample: Natural
    token: Natural
    finish: FinishReason | None
    logprob: TokenLogprob | None


class Handoff(Message, frozen=True, kw_only=True):
    """prefill -> decode: the prompt is computed; complete in itself, repeated if lost"""

    transfer: TransferId
    attempt: int
    n_tokens: Natural  # of prompt + outputs, whose KV the pages hold
    first: Natural
    pages: tuple[PageRef, ...]
    tokens: tuple[HandedToken, ...]  # one a sample; a finished one is not decoded
    cached_tokens: int  # of these the prefill side computed none


class Release(Message, frozen=True, kw_only=True):
    """decode -> prefill: I have read all I will read of this attempt; my lease ends"""

    transfer: TransferId
    attempt: int


class TokenRun(Part, frozen=True):
    """Consecutive output tokens of one sample."""

    transfer: TransferId
    attempt: int
    sample: Natural
    index: Natural  # of tokens[0] among the sample's outputs, earlier attempts' included
    tokens: tuple[Natural, ...]
    finish: FinishReason | None = None  # after the last of these
    logprobs: tuple[TokenLogprob, ...] = ()  # empty, or one a token
    cached_tokens: int | None = None  # with index == first index of the attempt
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None


class Tokens(Message, frozen=True, kw_only=True):
    """worker -> gateway: what one step gave this gateway's requests, in one message"""

    runs: tuple[TokenRun, ...]


class Ack(Part, frozen=True):
    """All outputs of the sample below `next_index` have been had."""

    transfer: TransferId
    attempt: int
    sample: int
    next_index: int


class TokensAck(Message, frozen=True, kw_only=True):
    """gateway -> worker: cumulative; frees the worker's copies and its credit"""

    acks: tuple[Ack, ...]


class FailureKind(StrEnum):
    """Who is to blame for a failed attempt, for the router and the metrics."""

    TRANSFER = auto()  # pages did not arrive from `peer`: bar the pair until probed
    PREFILL_LOST = auto()  # `peer` no longer knows the transfer
    COMPUTE = auto()  # a pass raised


class Failed(Message, frozen=True, kw_only=True):
    """worker -> gateway: this attempt cannot go on here; only the gateway opens the next"""

    transfer: TransferId
    attempt: int
    kind: FailureKind
    detail: str
    peer: InstanceId | None = None
    alone: bool = False  # COMPUTE: nobody shared the pass


class Snapshot(Message, frozen=True, kw_only=True):
    """worker -> gateway: load and prefix events; whoever misses one asks for `Resync`"""

    sequence: int  # ascending by 1 per receiver
    whole: bool  # `stored` is everything; forget what came before
    n_pages: int
    free_pages: int  # free or cached: can be had at once
    cached_pages: int  # of these
    running: int
    waiting: int
    queued_tokens: int  # prompt tokens accepted and not yet computed
    step_s: float  # recent median of a pass
    tokens_per_s: float  # of prompts, in passes as large as they come; 0: not known
    stored: tuple[PageHash, ...] = ()
    removed: tuple[PageHash, ...] = ()


class Resync(Message, frozen=True, kw_only=True):
    """gateway -> worker: send a whole Snapshot"""


class ResetPrefixCache(Message, frozen=True, kw_only=True):
    """gateway -> worker, repeated until answered: nothing that was computed is found again"""

    number: int


class PrefixCacheReset(ResetPrefixCache, frozen=True, kw_only=True):
    """worker -> gateway: answers it"""


class Metrics(Message, frozen=True, kw_only=True):
    """worker -> gateway, on a timer: its counters, since its start (see `common.metrics`)"""

    values: tuple[tuple[str, float], ...]


class Marks(Message, frozen=True, kw_only=True):
    """worker -> gateway, on the timer of Metrics: what has happened since the last. For people:
    nothing is decided by it, and what is lost is not told again"""

    marks: tuple[Mark, ...]


Common = Hello | Welcome | HelloRefused | Goodbye | Heartbeat | Gone
ToWorker = End | TokensAck | Resync | ResetPrefixCache | PeerLost
ToPrefill = Prefill | Accept | Release | ToWorker | Common
ToDecode = Expect | PagesReady | Handoff | ToWorker | Common
Told = Snapshot | PrefixCacheReset | Metrics | Marks
ToGateway = Accepted | Refused | Tokens | Failed | Told | Common
AnyMessage = ToPrefill | ToDecode | ToGateway
