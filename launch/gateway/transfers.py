"""A request as the gateway follows it: samples, attempts, and who has it. Records, no decisions."""

from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import NewType

from common.errors import ClientError, ContextOverflow, SloHopeless, SloMissed
from common.ids import InstanceId, PageHash, TransferId
from common.messages import Expect, Limits, Peer, Prefill, Refused, Resume, TokenRun
from common.params import FinishReason, SamplingParams

RETRY_MIN_S = 1.0
BLAMED_AFTER = 2  # passes of a suspect's own that raised: one may be by chance
SUSPECT_AFTER = 2  # failures of what it was computed by: whoever is to blame is in each of them
CLEARED_AFTER_TOKENS = 16  # more than whoever fails at every pass of decode gets from prefill

RequestId = NewType("RequestId", str)
"""One prompt of one client's request: `cmpl-…-0`. Shown in logs; never on the wire to workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a request is owed. None: nothing is stated, and nobody is refused for it."""

    ttft_s: float | None = None  # from its arrival to its first token
    tpot_s: float | None = None  # a token after the first, in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """What a client calls what it asks for."""

    prompt: str = "prompt"
    max_tokens: str = "max_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """What the HTTP side asks for: one prompt, n samples. Validated and tokenised."""

    request: RequestId
    prompt: tuple[int, ...]
    n: int
    params: SamplingParams
    hashes: tuple[PageHash, ...] = ()  # of the prompt's full pages, for prefix affinity
    salt: str = ""
    slo: Slo = Slo()
    timeout_s: float | None = None  # from its arrival to its end
    priority: int = 0  # lower ones come first
    waited_s: float = 0.0  # since its arrival, for others of its answer
    fields: Fields = Fields()
    promised: bool = False  # its answer has begun: it is refused for no want of room or of time


class Phase(StrEnum):
    """Of the current attempt."""

    UNROUTED = auto()  # no workers for it yet
    SENT = auto()  # some worker has not answered
    ADMITTED = auto()  # every worker has accepted
    HANDED = auto()  # decode has the whole prompt: the prefill side's part is over
    DONE = auto()


@dataclass(slots=True, eq=False)
class Sample:
    """One of n answers: what its client has been given."""

    sample: int
    outputs: list[int] = field(default_factory=list[int])
    finish: FinishReason | None = None
    stopped: bool = False  # the gateway wants no more of it: a stop string
    n_unwanted: int = 0  # outputs that came after that

    @property
    def over(self) -> bool:
        return self.finish is not None or self.stopped

    @property
    def n_had(self) -> int:
        """Outputs that have come, in order: what is acknowledged."""
        return len(self.outputs) + self.n_unwanted


@dataclass(slots=True, eq=False)
class Transfer:
    """Samples that travel together, and the attempt that is on. Earlier attempts are void."""

    transfer: TransferId
    generate: Generate
    samples: list[Sample]
    attempt: int = 0  # 1 with the first route
    phase: Phase = Phase.UNROUTED
    prefill: Peer | None = None
    decode: Peer | None = None
    decode_cached_tokens: int = 0
    deadline_s: float | None = None  # of the attempt: from its routing to the first token
    refuse_if_late: bool = False  # nobody was promised an answer yet
    recovering: bool = False  # earlier workers have accepted it
    handed_by: float = 0.0  # of the attempt: when its prompt should be computed; the core's clock
    resumes: tuple[Resume, ...] = ()  # what the attempt started from, whatever has come since
    prefill_over: bool = False  # of this attempt: it has let go of it
    prompt_queued: bool = False  # of this attempt: at whoever computes it, not known to be computed
    awaited: set[InstanceId] = field(default_factory=set[InstanceId])  # have not accepted yet
    early: dict[tuple[int, int], TokenRun] = field(  # (sample, index): before the prompt's scores
        default_factory=dict[tuple[int, int], TokenRun]
    )
    troubled_since: float | None = None  # a failure, or no workers; without progress since
    failures: int = 0  # without progress since
    suspicions: int = 0  # workers that died and passes that raised while it was there, of late
    crashes: int = 0  # of these, workers that died by themselves
    raised_alone: int = 0  # passes of its own that raised, a suspect as it was
    n_fresh: int = 0  # outputs since the last of these
    retry_at: float | None = None  # when UNROUTED: try again
    trouble: str = "no workers are ready"  # the last failure, for whoever gives up
    avoid: frozenset[InstanceId] = frozenset()  # have refused it since it was last taken

    @property
    def workers(self) -> tuple[InstanceId, ...]:
        """Who may hold something of the current attempt."""
        if self.decode is None:
            return () if self.prefill is None else (self.prefill.instance,)
        if self.prefill is None:
            return (self.decode.instance,)
        return (self.prefill.instance, self.decode.instance)

    def sample(self, number: int) -> Sample | None:
        """None: it does not travel here."""
        for sample in self.samples:
            if sample.sample == number:
                return sample
        return None

    def is_prefill(self, worker: InstanceId) -> bool:
        return self.prefill is not None and self.prefill.instance == worker

    def decodes_at(self, worker: InstanceId) -> bool:
        return self.decode is not None and self.decode.instance == worker

    @property
    def over(self) -> bool:
        return not self.live()

    @property
    def is_suspect(self) -> bool:
        """It may be what fails passes: it shares them with nobody."""
        return self.suspicions >= SUSPECT_AFTER

    @property
    def needs_own_workers(self) -> bool:
        """Being alone in its passes has not shown whether it is what workers crash of."""
        return self.crashes > SUSPECT_AFTER

    def suspect(self) -> None:
        """A pass raised, or a worker died, and it was there; as others were, perhaps."""
        self.suspicions += 1
        self.n_fresh = 0

    def raised(self) -> bool:
        """A pass of its own raised. True: it has done so too often to be by chance."""
        self.raised_alone += 1
        self.n_fresh = 0
        return self.raised_alone == BLAMED_AFTER

    def well(self, n_fresh: int) -> None:
        """It has so many more outputs."""
        self.n_fresh += n_fresh
        if self.n_fresh >= CLEARED_AFTER_TOKENS:
            self.suspicions = self.crashes = self.raised_alone = 0

    def live(self) -> list[Sample]:
        return [sample for sample in self.samples if not sample.over]

    def late(self, refused: Refused) -> SloMissed | None:
        """For the client, if it was refused since the first token would come too late there."""
        ttft_s, due_in_s = self.generate.slo.ttft_s, self.deadline_s
        predicted_s, retry_after_s = refused.predicted_ttft_s, refused.retry_after_s
        if ttft_s is None or due_in_s is None or predicted_s is None:
            return None
        if retry_after_s is None and predicted_s > ttft_s:
            return SloHopeless(ttft_s, predicted_s)
        waited_s = ttft_s - due_in_s  # before that worker was asked
        return SloMissed(ttft_s, waited_s + predicted_s, retry_after_s=retry_after_s or RETRY_MIN_S)

    def misfit(self, refused: Refused, limits: Limits | None) -> ClientError:
        """For the client, if it never fits the worker with these limits."""
        asked, fields = self.generate, self.generate.fields
        n_prompt, max_tokens = len(asked.prompt), asked.params.max_tokens
        most = n_prompt + max_tokens
        if limits is not None:  # the KV of the last token is never written
            most = min(limits.max_model_len, limits.n_pages * limits.page_tokens + 1)
        if n_prompt + max_tokens <= most:
            return ClientError(f"The request does not fit: {refused.reason}.", param=fields.prompt)
        param = fields.prompt if n_prompt >= most else fields.max_tokens
        return ContextOverflow(n_prompt, max_tokens, most, param=param)

    def prefill_message(self) -> Prefill:
        """For the current route, which has a prefill worker."""
        assert self.decode is not None
        return Prefill(
            transfer=self.transfer,
            attempt=self.attempt,
            prompt=self.generate.prompt,
            samples=self.resumes,
            params=self.generate.params,
            decode=self.decode.instance,
            salt=self.generate.salt,
            decode_cached_tokens=self.decode_cached_tokens,
            deadline_s=self.deadline_s,
            refuse_if_late=self.refuse_if_late,
            recovering=self.recovering,
            alone=self.is_suspect,
            priority=self.generate.priority,
        )

    def expect_message(self) -> Expect:
        """For the current route."""
        return Expect(
            transfer=self.transfer,
            attempt=self.attempt,
            prompt=self.generate.prompt,
            samples=self.resumes,
            params=self.generate.params,
            prefill=self.prefill,
            salt=self.generate.salt,
            deadline_s=self.deadline_s,
            refuse_if_late=self.refuse_if_late,
            recovering=self.recovering,
            alone=self.is_suspect,
            tpot_s=self.generate.slo.tpot_s,
            priority=self.generate.priority,
        )
