"""A prefill core on a bench: messages in by sender, actions out, a clock that the test turns."""

from collections import deque
from itertools import pairwise
from typing import TypeVar

import numpy as np

from common.engine.events import (
    Action,
    Decision,
    Event,
    Launch,
    Note,
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
from common.kv.pages import PagePool
from common.kv.prefix import page_hashes
from common.messages import (
    PROTOCOL,
    Accept,
    AnyMessage,
    End,
    Heartbeat,
    Hello,
    Limits,
    Listed,
    PageRef,
    Peer,
    Phase,
    Prefill,
    RegionKey,
    Release,
    Resume,
    TokenRun,
    Tokens,
)
from common.params import SamplingParams
from prefill.core import PrefillCore, PrefillOptions

G = InstanceId("gateway")
D = InstanceId("decode")
T = TransferId("t")
FINGERPRINT = "model"
ROLES = {"g": Role.GATEWAY, "d": Role.DECODE}

M = TypeVar("M")


def region(instance: InstanceId = D) -> RegionKey:
    return RegionKey(
        owner=instance, host=HostId("h"), region=0, n_pages=99, page_bytes=4096, doors={}
    )


def hello(instance: InstanceId = D) -> Hello:
    role = ROLES[instance[0]]
    peer = Peer(instance=instance, role=role, host=HostId("h"), endpoints=("ipc",))
    pool = region(instance) if role is Role.DECODE else None
    return Hello(protocol=PROTOCOL, peer=peer, model=None, limits=None, pool=pool)


def params(max_tokens: int = 9, **given: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=0, **given)  # pyright: ignore[reportArgumentType] as the fields are


def prefill(  # noqa: PLR0913  every field has a default
    prompt: tuple[int, ...] | int = 6,
    *,
    transfer: str = T,
    attempt: int = 1,
    samples: tuple[Resume, ...] | int = 1,
    sampling: SamplingParams | None = None,
    decode_cached: int = 0,
    deadline_s: float | None = None,
    refuse_if_late: bool = False,
    priority: int = 0,
) -> Prefill:
    """`prompt` as a number n: tokens 1 .. n."""
    return Prefill(
        transfer=TransferId(transfer),
        attempt=attempt,
        prompt=tuple(range(1, prompt + 1)) if isinstance(prompt, int) else prompt,
        samples=tuple(map(Resume, range(samples))) if isinstance(samples, int) else samples,
        params=sampling or params(),
        decode=D,
        decode_cached_tokens=decode_cached,
        deadline_s=deadline_s,
        refuse_if_late=refuse_if_late,
        priority=priority,
    )


def refs(*pages: int) -> tuple[PageRef, ...]:
    """The decode side's pages, each in its generation 100 + page."""
    return tuple(PageRef(PageId(page), 100 + page) for page in pages)


def accept(transfer: str = T, attempt: int = 1, held: tuple[PageRef, ...] = ()) -> Accept:
    return Accept(transfer=TransferId(transfer), attempt=attempt, held=held)


def release(transfer: str = T, attempt: int = 1) -> Release:
    return Release(transfer=TransferId(transfer), attempt=attempt)


def ended(transfer: str = T, attempt: int = 1) -> End:
    return End(transfer=TransferId(transfer), attempt=attempt)


def listing(*rows: tuple[str, int, Phase], had: int = 0) -> Heartbeat:
    """A digest. `had`: outputs of sample 0."""
    lines = (Listed(TransferId(t), attempt, phase, ((0, had),)) for t, attempt, phase in rows)
    return Heartbeat(transfers=tuple(lines))


def hashes(tokens: tuple[int, ...] | int, page_tokens: int = 4) -> tuple[PageHash, ...]:
    ids = tuple(range(1, tokens + 1)) if isinstance(tokens, int) else tokens
    return page_hashes(ids, page_tokens, fingerprint=FINGERPRINT, salt="")


class Bench:
    """Knows one gateway and one decode worker from the start, unless told otherwise."""

    def __init__(  # noqa: PLR0913  every field has a default
        self,
        *,
        n_pages: int = 16,
        page_tokens: int = 4,
        max_num_batched_tokens: int = 64,
        max_model_len: int = 64,
        max_waiting: int = 8,
        chunk_tokens: int = 16,
        cache: bool = True,
        plan_ahead: bool = False,
        peers: tuple[InstanceId, ...] = (G, D),
    ) -> None:
        limits = Limits(
            n_pages=n_pages,
            page_tokens=page_tokens,
            max_model_len=max_model_len,
            max_num_seqs=8,
            max_num_batched_tokens=max_num_batched_tokens,
            max_waiting=max_waiting,
        )
        options = PrefillOptions(
            fingerprint=FINGERPRINT,
            chunk_tokens=chunk_tokens,
            enable_prefix_caching=cache,
            plan_ahead=plan_ahead,
        )
        self.plan_ahead = plan_ahead
        self.pool = PagePool(n_pages, np.zeros(n_pages, np.uint64))
        self.core = PrefillCore(limits, self.pool, options)
        self.now = 0.0
        self.wake_at: float | None = None
        self.actions: tuple[Action, ...] = ()
        self.unanswered: deque[Launch] = deque()
        self.began_at = 0.0  # the oldest of them
        for instance in peers:
            self.take(PeerUp(hello(instance)))

    def take(self, *events: Event) -> tuple[Action, ...]:
        """One step. The laws hold after every one."""
        decision: Decision = self.core.step(self.now, events)
        self.core.check()
        self.actions, self.wake_at = decision.actions, decision.wake_at
        for launch in self.did(Launch):
            if not self.unanswered:
                self.began_at = self.now
            self.unanswered.append(launch)
        assert len(self.unanswered) <= 1 + self.plan_ahead
        return self.actions

    @property
    def launched(self) -> Launch | None:
        """The running pass."""
        return self.unanswered[0] if self.unanswered else None

    def hear(self, *messages: AnyMessage, sender: InstanceId = G) -> tuple[Action, ...]:
        return self.take(*(Received(sender, message) for message in messages))

    def tick(self, seconds: float) -> tuple[Action, ...]:
        self.now += seconds
        return self.take()

    def done(
        self, *tokens: int, result: PassResult | None = None, ready_s: float = 0.0
    ) -> tuple[Action, ...]:
        """The running pass is final, and drew these."""
        drawn = tuple(Drawn(token=token) for token in tokens)
        return self.take(StepDone(self._ended(), result or PassResult(drawn=drawn), ready_s))

    def raised(self, detail: str) -> tuple[Action, ...]:
        """The running pass is final, and its results are none."""
        return self.take(StepFailed(self._ended(), detail))

    def _ended(self) -> StepId:
        self.began_at = self.now
        return self.unanswered.popleft().step

    def pulled(self, pull: Pull, *, ok: bool = True) -> tuple[Action, ...]:
        return self.take(TicketFinal(pull.ticket, ok, "" if ok else "torn"))

    @property
    def plan(self) -> PassPlan:
        assert self.launched is not None
        return self.launched.plan

    @property
    def rows(self) -> list[list[int]]:
        """The running pass's tokens, by sequence."""
        starts = self.plan.start_B1.tolist()
        tokens = self.plan.tokens_T.tolist()
        return [tokens[a:b] for a, b in pairwise(starts)]

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

    def told(self, peer: InstanceId) -> list[AnyMessage]:
        """Everything that it is told in the last step's actions."""
        return [send.message for send in self.did(Send) if send.peer == peer]

    @property
    def runs(self) -> list[TokenRun]:
        return [run for message in self.said(Tokens, G) for run in message.runs]

    @property
    def notes(self) -> list[str]:
        return [note.name for note in self.did(Note)]

    def refs(self, *pages: int) -> tuple[PageRef, ...]:
        """Our own pages as they are announced now."""
        return tuple(PageRef(PageId(p), self.pool.generation(PageId(p))) for p in pages)

    def computed(self, request: Prefill, *tokens: int) -> None:
        """Take a prompt to its first tokens, in passes of its own."""
        self.hear(request)
        while not self.plan.draws:
            self.done()
        self.done(*tokens)
