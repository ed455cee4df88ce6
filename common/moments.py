"""Moments of an attempt's life at a worker, as it tells its gateway of them: for people, who watch.

Nothing is decided by them. Must hold no behaviour.
"""

from enum import StrEnum, auto

from common.ids import TransferId
from common.parts import Part


class Moment(StrEnum):
    """Named as the notes in the request log are."""

    QUEUED = auto()
    CONTEXT_BEGIN = auto()
    CONTEXT_END = auto()
    MIGRATION_BEGIN = auto()
    MIGRATION_END = auto()
    DECODING_BEGIN = auto()
    DECODING_END = auto()
    PREEMPTED = auto()
    RESUMED = auto()


class Mark(Part, frozen=True):
    """When one was."""

    transfer: TransferId
    attempt: int
    moment: Moment
    age_s: float  # before it was told
