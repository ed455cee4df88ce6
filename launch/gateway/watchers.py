"""Whoever follows what happens at the gateway's engine, and decides nothing."""

from typing import Protocol

from common.engine.events import Event, Note
from launch.gateway.transfers import Generate


class Watcher(Protocol):
    """Called by the event loop's thread."""

    def submitted(self, generate: Generate) -> None: ...

    def note(self, note: Note) -> None:
        """What the core does with a transfer."""
        ...

    def heard(self, event: Event) -> None:
        """What a worker tells of itself, and that it comes and goes."""
        ...


class Watchers:
    """Several, as one."""

    def __init__(self, *watchers: Watcher) -> None:
        self._watchers = list(watchers)

    def add(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def submitted(self, generate: Generate) -> None:
        for watcher in self._watchers:
            watcher.submitted(generate)

    def note(self, note: Note) -> None:
        for watcher in self._watchers:
            watcher.note(note)

    def heard(self, event: Event) -> None:
        for watcher in self._watchers:
            watcher.heard(event)
