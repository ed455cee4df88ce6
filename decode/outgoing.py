"""What a decode worker says, and what it keeps until it was heard: tokens, credit, digests' lines.

Tokens are sent as they come and kept until the gateway's End. Acknowledgements are cumulative; a
gateway that lists the same too low index twice in a row has lost a message and is sent the rest
again. Decides nothing about pages or passes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.engine.events import Action, Note, Send
from common.errors import InvariantBroken
from common.ids import InstanceId
from common.messages import Accept, Accepted, AnyMessage, Listed, PageRef, Release, TokenRun, Tokens
from common.messages import Phase as WirePhase
from common.params import TokenLogprob
from decode.state import Phase, Sample, Transfer

CREDIT_TOKENS = 65536  # until the gateway says

_WIRE_PHASES = {
    Phase.QUEUED: WirePhase.WAITING,
    Phase.CALLING: WirePhase.ACCEPTED,
    Phase.PULLING: WirePhase.ACCEPTED,
    Phase.HANDED: WirePhase.HANDED,
    Phase.RUNNING: WirePhase.DECODING,
    Phase.DONE: WirePhase.DONE,
    Phase.FAILED: WirePhase.DONE,  # like it, kept until the gateway's End
}


@dataclass(slots=True)
class _Account:
    credit_tokens: int = CREDIT_TOKENS
    unacked_tokens: int = 0


class Outgoing:
    """Actions in the order given; tokens gathered into one message a gateway."""

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._runs: dict[InstanceId, list[TokenRun]] = {}
        self._accounts: dict[InstanceId, _Account] = {}

    def drain(self) -> tuple[Action, ...]:
        """Everything to do, the tokens last: whatever computes should start before them."""
        for gateway, runs in self._runs.items():
            self._actions.append(Send(gateway, Tokens(runs=tuple(runs))))
        actions = tuple(self._actions)
        self._actions, self._runs = [], {}
        return actions

    def act(self, action: Action) -> None:
        self._actions.append(action)

    def send(self, peer: InstanceId, message: AnyMessage) -> None:
        self._actions.append(Send(peer, message))

    def note(self, transfer: Transfer, name: str, **fields: int | float | str) -> None:
        self._actions.append(Note(*transfer.key, name, fields))

    # --- to the prefill side and about the transfer ------------------------------------------

    def accepted(self, transfer: Transfer) -> None:
        self._account(transfer.gateway)
        request = transfer.request
        answer = Accepted(transfer=request.transfer, attempt=request.attempt)
        self.send(transfer.gateway, answer)

    def accept(self, transfer: Transfer, held: tuple[PageRef, ...]) -> None:
        request = transfer.request
        assert request.prefill is not None
        transfer.accepted = True
        message = Accept(transfer=request.transfer, attempt=request.attempt, held=held)
        self.send(request.prefill.instance, message)

    def release(self, transfer: Transfer, *, again: bool = False) -> None:
        """Once, if there was an Accept; `again`: the prefill side shows that it has not heard."""
        prefill = transfer.request.prefill
        if prefill is None or not transfer.accepted or (transfer.released and not again):
            return
        transfer.released = True
        request = transfer.request
        message = Release(transfer=request.transfer, attempt=request.attempt)
        self.send(prefill.instance, message)

    def failed(self, transfer: Transfer) -> None:
        if transfer.failure is not None:
            self.send(transfer.gateway, transfer.failure)

    # --- tokens ------------------------------------------------------------------------------

    def credit(self, gateway: InstanceId, credit_tokens: int | None) -> None:
        if credit_tokens is not None:
            self._account(gateway).credit_tokens = credit_tokens

    def credit_left(self, unread: Mapping[InstanceId, int]) -> Mapping[InstanceId, int]:
        """Tokens that may still be sent to each gateway; `unread`: that will be, for sure."""
        return {
            gateway: account.credit_tokens - account.unacked_tokens - unread.get(gateway, 0)
            for gateway, account in self._accounts.items()
        }

    def may_talk_to(self, gateway: InstanceId) -> bool:
        account = self._account(gateway)
        return account.unacked_tokens < account.credit_tokens

    def drop(self, gateway: InstanceId) -> None:
        """It is gone; its transfers have been forgotten."""
        self._accounts.pop(gateway, None)
        self._runs.pop(gateway, None)

    def deliver(self, sample: Sample) -> None:
        """Send what has not been sent yet."""
        n_new = len(sample.outputs) - sample.sent
        self._account(sample.transfer.gateway).unacked_tokens += n_new
        start, sample.sent = sample.sent, len(sample.outputs)
        self._run(sample, start)

    def acknowledge(self, sample: Sample, next_index: int) -> None:
        """The gateway has all outputs below `next_index`."""
        n_new = min(next_index, sample.sent) - sample.acked
        if n_new <= 0:
            return
        sample.acked += n_new
        self._account(sample.transfer.gateway).unacked_tokens -= n_new
        if sample.logprobs:
            del sample.logprobs[: sample.acked - sample.logprobs_from]
            sample.logprobs_from = sample.acked

    def listed(self, sample: Sample, next_index: int) -> None:
        """The gateway's digest: an acknowledgement too, and the second time in a row a complaint.

        Once only says that a message was on its way.
        """
        self.acknowledge(sample, next_index)
        if not sample.acked <= next_index < sample.sent:
            sample.listed = None
        elif sample.listed == next_index:
            self._run(sample, next_index)
            sample.listed = None
        else:
            sample.listed = next_index

    def forget(self, transfer: Transfer) -> None:
        """The End acknowledges everything."""
        account = self._account(transfer.gateway)
        account.unacked_tokens -= sum(s.sent - s.acked for s in transfer.samples)

    def _account(self, gateway: InstanceId) -> _Account:
        account = self._accounts.get(gateway)
        if account is None:
            account = self._accounts[gateway] = _Account()
        return account

    def _run(self, sample: Sample, start: int) -> None:
        transfer = sample.transfer
        is_first = start == sample.first_index
        run = TokenRun(
            *transfer.key,
            sample.number,
            start,
            sample.outputs[start : sample.sent],
            sample.finish,
            tuple(sample.logprobs[start - sample.logprobs_from :]),
            transfer.cached if is_first else None,
            _scores(sample) if is_first else None,
        )
        self._runs.setdefault(transfer.gateway, []).append(run)

    def check(self, transfers: Iterable[Transfer]) -> None:
        """Raise InvariantBroken unless the accounts are what the samples say."""
        known = dict.fromkeys(self._accounts, 0)
        for transfer in transfers:
            known[transfer.gateway] += sum(s.sent - s.acked for s in transfer.samples)
        for gateway, account in self._accounts.items():
            if account.unacked_tokens != known[gateway]:
                raise InvariantBroken(
                    f"{gateway}: {known[gateway]} tokens unacknowledged, not "
                    f"{account.unacked_tokens}"
                )


def _scores(sample: Sample) -> tuple[TokenLogprob | None, ...] | None:
    """Log-probabilities of the prompt's tokens, where they were computed here; first has none."""
    transfer = sample.transfer
    n_scored = len(transfer.scored)
    if transfer.request.params.prompt_logprobs is None or transfer.request.prefill is not None:
        return None
    return (None, *transfer.scored) if n_scored == len(sample.prompt) - 1 else None


def line(transfer: Transfer, *, to_gateway: bool) -> Listed:
    """The transfer's line in a digest."""
    samples = transfer.samples if to_gateway else ()
    had = tuple((s.number, len(s.outputs)) for s in samples)
    return Listed(*transfer.key, _WIRE_PHASES[transfer.phase], had)
