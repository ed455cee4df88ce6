"""What has come of workers' tokens, to be acknowledged: cumulative, and together after a moment."""

from collections import defaultdict

from common.ids import InstanceId, TransferId
from common.messages import Ack, TokenRun, TokensAck

ACK_EVERY_S = 0.05


class Acks:
    """Of all workers. `due`: when to call `take`; None: nothing new."""

    def __init__(self) -> None:
        self.due: float | None = None
        self._acks: dict[InstanceId, dict[tuple[TransferId, int], Ack]] = defaultdict(dict)

    def had(self, worker: InstanceId, run: TokenRun, next_index: int, now: float) -> None:
        """Of that run's sample everything below `next_index` has come."""
        ack = Ack(run.transfer, run.attempt, run.sample, next_index)
        self._acks[worker][run.transfer, run.sample] = ack
        if self.due is None:
            self.due = now + ACK_EVERY_S

    def forget(self, worker: InstanceId) -> None:
        """It is gone."""
        self._acks.pop(worker, None)

    def take(self, now: float) -> list[tuple[InstanceId, TokensAck]]:
        """What to send now."""
        if self.due is None or now < self.due:
            return []
        acks, self._acks, self.due = self._acks, defaultdict(dict), None
        return [(worker, TokensAck(acks=tuple(of.values()))) for worker, of in acks.items()]
