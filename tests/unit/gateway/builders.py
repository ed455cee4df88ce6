"""A gateway core on a bench: clients and workers in, actions out, a clock that the test turns."""

from dataclasses import replace
from itertools import count
from typing import TypeVar

from common.engine.events import Note, PeerDown, PeerUp, Received, Send
from common.ids import HostId, InstanceId, PageHash, Role, TransferId
from common.messages import (
    PROTOCOL,
    Accepted,
    AnyMessage,
    Expect,
    Failed,
    FailureKind,
    Gone,
    Heartbeat,
    Hello,
    Limits,
    Listed,
    Peer,
    Phase,
    Prefill,
    Refused,
    Snapshot,
    TokenRun,
    Tokens,
)
from common.params import FinishReason, SamplingParams
from common.values import Disaggregate
from launch.gateway.attempts import GatewayOptions
from launch.gateway.core import GatewayCore
from launch.gateway.events import (
    Admitted,
    Delta,
    GatewayAction,
    GatewayEvent,
    Quit,
    Rejected,
    StopSample,
    Submit,
)
from launch.gateway.transfers import Generate, RequestId, Slo

P, P2 = InstanceId("prefill-1"), InstanceId("prefill-2")
D, D2 = InstanceId("decode-1"), InstanceId("decode-2")
R = RequestId("r")
T = TransferId("t1")  # the first that a bench opens
LENGTH = FinishReason.LENGTH

M = TypeVar("M")


def limits(
    *, n_pages: int = 100, page_tokens: int = 4, max_model_len: int = 400, max_num_seqs: int = 8
) -> Limits:
    return Limits(
        n_pages=n_pages,
        page_tokens=page_tokens,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=64,
        max_waiting=8,
    )


def peer(instance: InstanceId) -> Peer:
    role = Role(instance.split("-")[0])
    return Peer(instance=instance, role=role, host=HostId("h"), endpoints=("ipc",))


def hello(instance: InstanceId, bounds: Limits | None = None) -> Hello:
    return Hello(
        protocol=PROTOCOL, peer=peer(instance), model=None, limits=bounds or limits(), pool=None
    )


def snapshot(  # noqa: PLR0913  every field has a default
    sequence: int = 1,
    *,
    whole: bool = True,
    stored: tuple[PageHash, ...] = (),
    removed: tuple[PageHash, ...] = (),
    busy: int = 0,
    queued_tokens: int = 0,
    step_s: float = 0.02,
    tokens_per_s: float = 1000.0,
) -> Snapshot:
    return Snapshot(
        sequence=sequence,
        whole=whole,
        n_pages=100,
        free_pages=100,
        cached_pages=0,
        running=busy,
        waiting=0,
        queued_tokens=queued_tokens,
        step_s=step_s,
        tokens_per_s=tokens_per_s,
        stored=stored,
        removed=removed,
    )


def generate(  # noqa: PLR0913  every field has a default
    name: str = R,
    n_prompt: int = 6,
    *,
    n: int = 1,
    max_tokens: int = 4,
    scores: bool = False,
    hashes: tuple[PageHash, ...] = (),
    slo: Slo | None = None,
    timeout_s: float | None = None,
) -> Generate:
    """Prompt tokens are 1 .. n_prompt. `scores`: the prompt's log-probabilities are wanted."""
    params = SamplingParams(max_tokens=max_tokens, seed=0, prompt_logprobs=0 if scores else None)
    prompt = tuple(range(1, n_prompt + 1))
    return Generate(
        request=RequestId(name),
        prompt=prompt,
        n=n,
        params=params,
        hashes=hashes,
        slo=slo or Slo(),
        timeout_s=timeout_s,
    )


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


def tokens(*runs: TokenRun) -> Tokens:
    return Tokens(runs=runs)


def accepted(transfer: str = T, attempt: int = 1) -> Accepted:
    return Accepted(transfer=TransferId(transfer), attempt=attempt)


def refused(
    attempt: int = 1, retry_after_s: float | None = 2.0, predicted_ttft_s: float | None = None
) -> Refused:
    return Refused(
        transfer=T,
        attempt=attempt,
        reason="full" if predicted_ttft_s is None else "late",
        retry_after_s=retry_after_s,
        predicted_ttft_s=predicted_ttft_s,
    )


def failed(
    attempt: int = 1, kind: FailureKind = FailureKind.COMPUTE, prefill: InstanceId | None = None
) -> Failed:
    alone = kind is FailureKind.COMPUTE
    return Failed(transfer=T, attempt=attempt, kind=kind, detail="why", peer=prefill, alone=alone)


def gone(transfer: str = T, attempt: int = 1) -> Gone:
    return Gone(transfer=TransferId(transfer), attempt=attempt)


def listing(*rows: tuple[str, int, Phase]) -> Heartbeat:
    lines = (Listed(TransferId(t), attempt, phase) for t, attempt, phase in rows)
    return Heartbeat(transfers=tuple(lines))


class Bench:
    """Knows one prefill and one decode worker from the start, unless told otherwise."""

    def __init__(
        self,
        *workers: InstanceId,
        options: GatewayOptions | None = None,
        alone: bool = False,
        disaggregate: Disaggregate = "always",
    ) -> None:
        ids = count(1)
        options = replace(options or GatewayOptions(), disaggregate=disaggregate)
        self.core = GatewayCore(options, lambda: TransferId(f"t{next(ids)}"))
        self.now = 0.0
        self.wake_at: float | None = None
        self.actions: tuple[GatewayAction, ...] = ()
        for worker in () if alone else (workers or (P, D)):
            self.up(worker)

    def take(self, *events: GatewayEvent) -> tuple[GatewayAction, ...]:
        """One step. What is counted is what there is, after every one."""
        decision = self.core.step(self.now, events)
        self.core.check()
        self.actions, self.wake_at = decision.actions, decision.wake_at
        return self.actions

    def up(self, worker: InstanceId, bounds: Limits | None = None) -> None:
        self.take(PeerUp(hello(worker, bounds)), Received(worker, snapshot()))

    def down(self, worker: InstanceId) -> None:
        self.take(PeerDown(worker))

    def hear(self, *messages: AnyMessage, sender: InstanceId = D) -> None:
        self.take(*(Received(sender, message) for message in messages))

    def submit(self, request: Generate | None = None) -> None:
        self.take(Submit(request or generate()))

    def quit(self, request: str = R) -> None:
        self.take(Quit(RequestId(request)))

    def stop(self, sample: int = 0, request: str = R) -> None:
        self.take(StopSample(RequestId(request), sample))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.take()

    def admitted(self, request: Generate | None = None) -> None:
        """Submit, and let both workers accept."""
        self.submit(request)
        (expect,) = self.said(Expect)
        answer = accepted(expect.transfer, expect.attempt)
        self.take(Received(P, answer), Received(D, answer))

    def did(self, kind: type[M]) -> list[M]:
        return [action for action in self.actions if isinstance(action, kind)]

    def said(self, kind: type[M], to: InstanceId | None = None) -> list[M]:
        """Messages of that kind in the last step's actions."""
        sends = [send for send in self.did(Send) if to in (None, send.peer)]
        return [send.message for send in sends if isinstance(send.message, kind)]

    @property
    def opened(self) -> list[tuple[str, int, InstanceId | None, InstanceId]]:
        """(transfer, attempt, prefill, decode) of the attempts that the last step opened."""
        return [
            (
                send.message.transfer,
                send.message.attempt,
                None if send.message.prefill is None else send.message.prefill.instance,
                send.peer,
            )
            for send in self.did(Send)
            if isinstance(send.message, Expect)
        ]

    @property
    def deltas(self) -> list[Delta]:
        return self.did(Delta)

    @property
    def given(self) -> list[tuple[int, int, tuple[int, ...], FinishReason | None]]:
        """(sample, index, tokens, finish) of the last step's deltas."""
        return [(d.sample, d.index, d.tokens, d.finish) for d in self.deltas]

    @property
    def is_admitted(self) -> bool:
        return len(self.did(Admitted)) == 1

    @property
    def error(self) -> Exception | None:
        errors = [rejected.error for rejected in self.did(Rejected)]
        return errors[0] if errors else None

    @property
    def notes(self) -> list[str]:
        return [note.name for note in self.did(Note)]

    @property
    def prefill(self) -> Prefill:
        (message,) = self.said(Prefill)
        return message

    @property
    def expect(self) -> Expect:
        (message,) = self.said(Expect)
        return message


FOUR = (P, P2, D, D2)


def handed(bench: Bench, *had: int) -> None:
    """Admitted, and decode has the prompt; the client has these tokens."""
    bench.admitted()
    bench.hear(tokens(run(0, *had)))
