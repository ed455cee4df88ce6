"""Attempts that are over and may still be computed: until an End has arrived, and until the passes
have ended that were launched before.

Whoever comes to a worker meanwhile is not to blame for what these do there. Decides nothing.
"""

from common.ids import InstanceId, TransferId
from common.messages import Heartbeat, Progress

MOST_UNANSWERED = 2  # passes of a worker: see `common.engine.events.Launch`

_Key = tuple[TransferId, int]


class Leftovers:
    """By worker; each with what the worker's pulse was when it first did not list it any more."""

    def __init__(self) -> None:
        self._at: dict[InstanceId, dict[_Key, Progress | None]] = {}

    def ended(self, worker: InstanceId, key: _Key) -> None:
        self._at.setdefault(worker, {})[key] = None

    def heard(self, worker: InstanceId, heartbeat: Heartbeat) -> None:
        """Its digest tells whom it knows, its pulse how many passes have ended since."""
        left, now = self._at.get(worker), heartbeat.progress
        if left is None or now is None:
            return
        listed = {(row.transfer, row.attempt) for row in heartbeat.transfers}
        for key, unlisted in list(left.items()):
            if key in listed:
                left[key] = None
            elif unlisted is None:
                left[key] = now
            elif _has_ended(unlisted, now):
                del left[key]
            elif now.step_age_s == 0:  # nothing runs, it seems: the next pulse tells
                left[key] = now
        if not left:
            del self._at[worker]

    def gone(self, worker: InstanceId) -> None:
        self._at.pop(worker, None)

    def beside(self, worker: InstanceId, transfer: TransferId) -> bool:
        """Whether others' may be computed there."""
        return any(other != transfer for other, _ in self._at.get(worker, ()))


def _has_ended(then: Progress, now: Progress) -> bool:
    """All that was launched then."""
    is_idle = now.steps_done == then.steps_done and now.step_age_s == 0
    return is_idle or now.steps_done >= then.steps_done + MOST_UNANSWERED
