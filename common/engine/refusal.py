"""Why a worker does not queue a request, and when it may come again. Must decide nothing."""

from dataclasses import dataclass

from common.ids import TransferId
from common.messages import Refused

RETRY_MIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """`retry_after_s`: None: to come again is no use."""

    text: str
    retry_after_s: float | None
    predicted_ttft_s: float | None = None  # as in `Refused`

    def message(self, transfer: TransferId, attempt: int) -> Refused:
        return Refused(
            transfer=transfer,
            attempt=attempt,
            reason=self.text,
            retry_after_s=self.retry_after_s,
            predicted_ttft_s=self.predicted_ttft_s,
        )


DRAINING = Refusal("draining", RETRY_MIN_S)
"""Of a worker that was told to leave. That is nobody's load: the gateway knows it by its text."""


def late(*, own_s: float, predicted_s: float, deadline_s: float, wait_s: float) -> Refusal:
    """Of a prompt whose first token is predicted too late. `own_s`: where nothing else is; one that
    is late even so has nothing to wait for. `wait_s`: until enough of what is ahead is done."""
    text = f"first token predicted in {predicted_s:.2f} s, owed in {deadline_s:.2f} s"
    if own_s > deadline_s:
        return Refusal(text, None, own_s)
    return Refusal(text, max(RETRY_MIN_S, wait_s), predicted_s)
