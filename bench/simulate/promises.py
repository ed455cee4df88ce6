"""What workers hold for others must be given up once these no longer know of it.

Only somebody beside all processes can see that: each for itself believes what it last heard.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from common.engine.events import PeerDown, Received, Send
from common.engine.reports import HEARTBEAT_IDLE_S
from common.errors import InvariantBroken
from common.ids import InstanceId, TransferId
from common.messages import Accept, End, Expect, Failed, Handoff, PagesReady, Prefill, Tokens

Key = tuple[TransferId, int]
"""(transfer, attempt)."""

Held = tuple[Key, InstanceId]
"""What, and for whom."""

Ask = Callable[[Key, InstanceId], bool]

SLACK_S = 0.5  # turns and messages on their way


class Promises:
    """Of one worker: what it holds for others must end when they are dead or have forgotten it,
    by a heartbeat that does not list it or by silence; and not before.
    """

    def __init__(self, lost_after_s: float, is_known: Ask, is_needed: Ask) -> None:
        """`is_known`: whether that process, if it lives, knows of it; `is_needed`: whether all who
        take part in it live, and still count on it."""
        self._most_s = lost_after_s + HEARTBEAT_IDLE_S + SLACK_S
        self._is_known, self._is_needed = is_known, is_needed
        self._held: set[Held] = set()
        self._since: dict[Held, float] = {}  # of these, those that nobody knows of
        self._at = 0.0

    def stepped(
        self, now: float, held: set[Held], excused: Collection[Key], calm_since: float | None
    ) -> None:
        """`excused`: what the step itself has ended, and said so. `calm_since`: whatever is said
        since then is heard, and soon; None: it is not."""
        if now - self._at > HEARTBEAT_IDLE_S + SLACK_S:
            self._since.clear()  # it has been paused, and has not heard what came
        self._at = now
        ended, self._held = self._held - held, held
        orphans = [one for one in held if not self._is_known(*one)]
        self._since = {one: self._since.get(one, now) for one in orphans}
        if calm_since is None:
            return
        for (key, owner), since in self._since.items():
            if now - max(since, calm_since) > self._most_s:
                raise InvariantBroken(f"{key} is held for {owner}, who knows of it no more")
        for key, owner in ended:
            if key not in excused and self._is_needed(key, owner):
                raise InvariantBroken(f"{key} is not held any more for {owner}, who needs it")


def ended_by_itself(actions: Sequence[Any]) -> set[Key]:
    """What a step has told its gateway the end of, or (of prefill) the first tokens."""
    ended: set[Key] = set()
    for action in actions:
        match action:
            case Send(message=Tokens(runs=runs)):
                ended.update((run.transfer, run.attempt) for run in runs)
            case Send(message=Failed(transfer=transfer, attempt=attempt)):
                ended.add((transfer, attempt))
            case _:
                pass
    return ended


class Accepts:
    """Prefill says nothing to decode of a transfer that has not been accepted."""

    def __init__(self) -> None:
        self._had: set[Held] = set()

    def stepped(self, events: Sequence[Any], actions: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Received) and isinstance(event.message, Accept):
                self._had.add(((event.message.transfer, event.message.attempt), event.sender))
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, PagesReady | Handoff):
                key = (action.message.transfer, action.message.attempt)
                if (key, action.peer) not in self._had:
                    raise InvariantBroken(f"{action.peer} is told of {key}, and has not accepted")


class OpenAttempts:
    """Of one gateway: attempts follow each other by ones, and a new one opens when each worker of
    the last one has been told that it is over."""

    def __init__(self) -> None:
        self._newest: dict[TransferId, int] = {}
        self._told: dict[TransferId, set[InstanceId]] = {}  # of the newest

    def stepped(self, events: Sequence[Any], actions: Sequence[Any]) -> None:
        lost = {event.instance for event in events if isinstance(event, PeerDown)}
        for told in self._told.values() if lost else ():
            told -= lost
        for action in actions:
            if not isinstance(action, Send):
                continue
            match action.message:
                case (
                    Prefill(transfer=transfer, attempt=attempt)
                    | Expect(transfer=transfer, attempt=attempt)
                ):
                    self._offered(action.peer, transfer, attempt)
                case End(transfer=transfer, attempt=attempt):
                    if attempt == self._newest.get(transfer):
                        self._told[transfer].discard(action.peer)
                case _:
                    pass

    def _offered(self, worker: InstanceId, transfer: TransferId, attempt: int) -> None:
        newest = self._newest.get(transfer, attempt - 1)  # one that was split off begins later
        told = self._told.setdefault(transfer, set())
        if attempt == newest + 1:
            if told:
                raise InvariantBroken(f"{transfer}: {sorted(told)} do not know of {newest}'s end")
        elif attempt != newest:
            raise InvariantBroken(f"{transfer}: attempt {attempt} follows {newest}")
        self._newest[transfer] = attempt
        told.add(worker)
