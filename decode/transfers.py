"""The live transfers of a decode worker: who is meant, and the exits.

Finish, failure, abort, supersession and a lost gateway all end in `_free`: pages and room come
back there and nowhere else.
"""

from collections.abc import ValuesView

from common.ids import InstanceId, TransferId
from common.messages import Expect, Failed, FailureKind
from decode.compute import Compute
from decode.intake import Intake
from decode.outgoing import Outgoing
from decode.passes import Pass
from decode.state import Event, Key, Phase, Transfer


class Transfers:
    """One attempt of each transfer, from its Expect to the gateway's End."""

    def __init__(self, compute: Compute, intake: Intake, outgoing: Outgoing) -> None:
        self._compute = compute
        self._intake = intake
        self._outgoing = outgoing
        self._live: dict[TransferId, Transfer] = {}

    def __len__(self) -> int:
        return len(self._live)

    @property
    def all(self) -> ValuesView[Transfer]:
        return self._live.values()

    def get(self, transfer: TransferId) -> Transfer | None:
        return self._live.get(transfer)

    def of_gateway(self, gateway: InstanceId) -> list[Transfer]:
        return [t for t in self._live.values() if t.gateway == gateway]

    def asked_by(self, gateway: InstanceId, key: Key) -> Transfer | None:
        """The transfer of that very attempt, if it is that gateway's."""
        transfer = self._live.get(key[0])
        if transfer is None or transfer.key != key or transfer.gateway != gateway:
            return None
        return transfer

    def read_from(self, prefill: InstanceId, key: Key) -> Transfer | None:
        """The transfer of that very attempt, if an Accept of it was sent there."""
        transfer = self._live.get(key[0])
        if transfer is None or transfer.key != key or not transfer.accepted:
            return None
        peer = transfer.request.prefill
        return transfer if peer is not None and peer.instance == prefill else None

    def queue(self, gateway: InstanceId, request: Expect) -> Transfer:
        transfer = self._intake.queue(gateway, request)
        self._live[request.transfer] = transfer
        self._outgoing.note(transfer, "queued", tokens=transfer.n_tokens)
        return transfer

    # --- the exits ---------------------------------------------------------------------------

    def finish_if_said(self, transfer: Transfer) -> None:
        """When every sample has ended, outputs stay until the gateway's End, pages do not."""
        if transfer.phase is Phase.DONE or any(s.finish is None for s in transfer.samples):
            return
        transfer.on(Event.FINISHED)
        self._free(transfer)
        self._outgoing.note(transfer, "decoding_end", tokens=_n_new(transfer))

    def fail_pass(self, work: Pass, detail: str) -> None:
        """It raised: of all that were in it, one may be to blame."""
        alone = not work.is_shared
        for row in work.rows:
            if row.is_live:
                self.fail(row.sample.transfer, FailureKind.COMPUTE, detail, alone=alone)

    def fail(
        self, transfer: Transfer, kind: FailureKind, detail: str, *, alone: bool = False
    ) -> None:
        """This attempt cannot go on here. The gateway is told again until its End."""
        prefill = transfer.request.prefill
        transfer.on(Event.BROKEN)
        transfer.failure = Failed(
            transfer=transfer.request.transfer,
            attempt=transfer.request.attempt,
            kind=kind,
            detail=detail,
            peer=None if prefill is None or kind is FailureKind.COMPUTE else prefill.instance,
            alone=alone,
        )
        self._free(transfer)
        self._outgoing.note(transfer, "failed", kind=kind, detail=detail)
        self._outgoing.failed(transfer)

    def end(self, transfer: Transfer) -> None:
        """The gateway wants no more of it: forget it."""
        if transfer.phase not in (Phase.DONE, Phase.FAILED):
            self._outgoing.note(transfer, "aborted", tokens=_n_new(transfer))
        transfer.on(Event.ENDED)
        self._free(transfer)
        self._outgoing.forget(transfer)
        del self._live[transfer.request.transfer]

    def _free(self, transfer: Transfer) -> None:
        for sample in transfer.samples:
            self._compute.holds.leave(sample)
        self._intake.let_go(transfer)
        self._outgoing.release(transfer)


def _n_new(transfer: Transfer) -> int:
    """Output tokens of this attempt."""
    return sum(len(sample.outputs) - sample.first_index for sample in transfer.samples)
