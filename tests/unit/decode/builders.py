"""A decode core on a bench: messages in by sender, actions out, a clock that the test turns."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from common.engine.events import (
    Action,
    Decision,
    Event,
    Launch,
    PeerUp,
    Pull,
    Received,
    Send,
    StepDone,
    StepFailed,
    TicketFinal,
)
from common.engine.plan import Drawn, PassPlan, PassResult
from common.ids import HostId, InstanceId, PageHash, PageId, Role, StepId, TransferId
from common.kv.host import HostMemory
from common.kv.pages import PagePool
from common.kv.prefix import page_hashes
from common.messages import (
    PROTOCOL,
    AnyMessage,
    End,
    Expect,
    HandedToken,
    Handoff,
    Hello,
    Limits,
    PageRef,
    PagesReady,
    Peer,
    RegionKey,
    Resume,
    TokenRun,
    Tokens,
)
from common.params import FinishReason, SamplingParams
from decode.compute import DecodeOptions
from decode.core import DecodeCore
from decode.forecast import Foresight

G = InstanceId("gateway")
P = InstanceId("prefill")
H = InstanceId("host")
T, U = TransferId("t"), TransferId("u")
FINGERPRINT = "model"
ROLES = {"g": Role.GATEWAY, "p": Role.PREFILL, "c": Role.DECODE}

M = TypeVar("M")


def peer(instance: InstanceId = P) -> Peer:
    return Peer(instance=instance, role=ROLES[instance[0]], host=HostId("h"), endpoints=("ipc",))


def region(instance: InstanceId = P, n_pages: int = 99) -> RegionKey:
    return RegionKey(
        owner=instance, host=HostId("h"), region=0, n_pages=n_pages, page_bytes=4096, doors={}
    )


def hello(instance: InstanceId = P) -> Hello:
    pool = None if ROLES[instance[0]] is Role.GATEWAY else region(instance)
    return Hello(protocol=PROTOCOL, peer=peer(instance), model=None, limits=None, pool=pool)


def expect(  # noqa: PLR0913  every field has a default
    prompt: tuple[int, ...] | int = 6,
    *,
    transfer: str = T,
    attempt: int = 1,
    samples: tuple[Resume, ...] | int = 1,
    prefill: InstanceId | None = P,
    max_tokens: int = 4,
    salt: str = "",
    end: tuple[int, ...] = (),
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
    priority: int = 0,
) -> Expect:
    """`prompt` as a number n: tokens 1 .. n."""
    return Expect(
        transfer=TransferId(transfer),
        attempt=attempt,
        prompt=tuple(range(1, prompt + 1)) if isinstance(prompt, int) else prompt,
        samples=tuple(map(Resume, range(samples))) if isinstance(samples, int) else samples,
        params=SamplingParams(
            max_tokens=max_tokens,
            seed=0,
            end_token_ids=end,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
        ),
        prefill=None if prefill is None else peer(prefill),
        salt=salt,
        priority=priority,
    )


def refs(*pages: int) -> tuple[PageRef, ...]:
    """The prefill side's pages, each in its generation 100 + page."""
    return tuple(PageRef(PageId(page), 100 + page) for page in pages)


def ready(*pages: int, transfer: str = T, attempt: int = 1, first: int = 0) -> PagesReady:
    return PagesReady(
        transfer=TransferId(transfer), attempt=attempt, first=first, pages=refs(*pages)
    )


def handoff(
    *pages: int,
    transfer: str = T,
    attempt: int = 1,
    n_tokens: int = 6,
    first: int = 0,
    tokens: tuple[int | HandedToken, ...] = (50,),
    cached_tokens: int = 0,
) -> Handoff:
    handed = tuple(
        HandedToken(sample, token, None, None) if isinstance(token, int) else token
        for sample, token in enumerate(tokens)
    )
    return Handoff(
        transfer=TransferId(transfer),
        attempt=attempt,
        n_tokens=n_tokens,
        first=first,
        pages=refs(*pages),
        tokens=handed,
        cached_tokens=cached_tokens,
    )


def ended(transfer: str = T, attempt: int = 1) -> End:
    return End(transfer=TransferId(transfer), attempt=attempt)


def run(
    index: int,
    *tokens: int,
    transfer: str = T,
    attempt: int = 1,
    sample: int = 0,
    finish: FinishReason | None = None,
    cached: int | None = None,
) -> TokenRun:
    return TokenRun(
        TransferId(transfer), attempt, sample, index, tokens, finish, cached_tokens=cached
    )


def hashes(tokens: tuple[int, ...] | int, page_tokens: int = 4) -> tuple[PageHash, ...]:
    ids = tuple(range(1, tokens + 1)) if isinstance(tokens, int) else tokens
    return page_hashes(ids, page_tokens, fingerprint=FINGERPRINT, salt="")


class Blind:
    """Expects every sequence to end with its next token: whoever fits now is let in."""

    deviations = 0.0

    def ended(self, n_said: int, *, cut: bool) -> None:
        pass

    def go_on(self, n_said: Sequence[int]) -> None:
        pass

    def predict(self, n_said: int, most: int, rank: float) -> int:  # noqa: ARG002  the protocol's
        return n_said + 1


class Bench:
    """Knows one gateway and one prefill worker from the start, unless told otherwise."""

    def __init__(  # noqa: PLR0913  every field has a default
        self,
        *,
        n_pages: int = 16,
        page_tokens: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 64,
        max_waiting: int = 8,
        chunk_tokens: int = 8,
        cache: bool = True,
        peers: tuple[InstanceId, ...] = (G, P),
        foresight: Foresight | None = None,
        plan_ahead: bool = False,
        most_repeats: int = 1,
        host_pages: int = 0,
    ) -> None:
        limits = Limits(
            n_pages=n_pages,
            page_tokens=page_tokens,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting=max_waiting,
        )
        options = DecodeOptions(
            fingerprint=FINGERPRINT,
            chunk_tokens=chunk_tokens,
            enable_prefix_caching=cache,
            plan_ahead=plan_ahead,
            most_repeats=most_repeats,
        )
        self.page_tokens = page_tokens
        self.pool = PagePool(n_pages, np.zeros(n_pages, np.uint64))
        self.host: HostMemory | None = None
        if host_pages:
            host_pool = PagePool(host_pages, np.zeros(host_pages, np.uint64))
            self.host = HostMemory(region(H, host_pages), host_pool)
        self.core = DecodeCore(limits, self.pool, options, foresight, self.host)
        self.now = 0.0
        self.wake_at: float | None = None
        self.actions: tuple[Action, ...] = ()
        self.plan_ahead = plan_ahead
        self.unanswered: list[Launch] = []  # the first runs
        self.began_at = 0.0
        for instance in peers:
            self.take(PeerUp(hello(instance)))

    def take(self, *events: Event) -> tuple[Action, ...]:
        """One step. The laws hold after every one."""
        decision: Decision = self.core.step(self.now, events)
        self.core.check()
        self.actions, self.wake_at = decision.actions, decision.wake_at
        assert self.wake_at is None or self.wake_at > self.now
        for action in decision.actions:
            if isinstance(action, Launch):
                self.unanswered.append(action)
                if len(self.unanswered) == 1:
                    self.began_at = self.now
        assert len(self.unanswered) <= 1 + self.plan_ahead
        return self.actions

    def hear(self, *messages: AnyMessage, sender: InstanceId = G) -> tuple[Action, ...]:
        return self.take(*(Received(sender, message) for message in messages))

    def tick(self, seconds: float) -> tuple[Action, ...]:
        self.now += seconds
        return self.take()

    def done(self, *tokens: int, result: PassResult | None = None) -> tuple[Action, ...]:
        """The running pass is final, and drew these."""
        step = self._ended()
        drawn = tuple(Drawn(token=token) for token in tokens)
        return self.take(StepDone(step, result or PassResult(drawn=drawn)))

    def raised(self, detail: str) -> tuple[Action, ...]:
        """The running pass is final, and its results are none."""
        step = self._ended()
        return self.take(StepFailed(step, detail))

    def _ended(self) -> StepId:
        self.began_at = self.now  # the next one, if there is one
        return self.unanswered.pop(0).step

    def pulled(self, *, ok: bool = True) -> tuple[Action, ...]:
        """The last action's pull is final."""
        return self.take(TicketFinal(self.pull.ticket, ok, "" if ok else "torn"))

    @property
    def launched(self) -> Launch | None:
        """The running pass."""
        return self.unanswered[0] if self.unanswered else None

    @property
    def plan(self) -> PassPlan:
        assert self.launched is not None
        return self.launched.plan

    @property
    def pull(self) -> Pull:
        (pull,) = self.did(Pull)
        return pull

    def did(self, kind: type[M]) -> list[M]:
        return [action for action in self.actions if isinstance(action, kind)]

    def said(self, kind: type[M], to: InstanceId | None = None) -> list[M]:
        """Messages of that kind in the last step's actions."""
        sends = [send for send in self.did(Send) if to in (None, send.peer)]
        return [send.message for send in sends if isinstance(send.message, kind)]

    @property
    def tokens_sent(self) -> list[tuple[InstanceId, Tokens]]:
        return [(s.peer, s.message) for s in self.did(Send) if isinstance(s.message, Tokens)]

    @property
    def runs(self) -> list[TokenRun]:
        """All runs of the last step's actions; they come in one message a gateway."""
        messages = self.said(Tokens)
        assert len(messages) <= 1
        return [run for message in messages for run in message.runs]

    def decoding(self, request: Expect, *pages: int) -> None:
        """Take a transfer of one token a page's worth through its handoff."""
        self.hear(request)
        n_tokens = len(request.prompt)
        message = handoff(
            *pages, transfer=request.transfer, attempt=request.attempt, n_tokens=n_tokens
        )
        self.hear(message, sender=P)
        if self.did(Pull):
            self.pulled()
