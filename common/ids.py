"""Typed ids. A bare `int` or `str` where one of these is meant is a type error.

Must hold no behaviour: only names for the things that other modules speak of.
"""

from enum import StrEnum, auto
from typing import NewType

InstanceId = NewType("InstanceId", str)
"""One life of one process (uuid4 hex). A restart on the same address is another instance."""

HostId = NewType("HostId", str)
"""One running kernel: processes with equal host ids can pass file descriptors to each other."""

TransferId = NewType("TransferId", str)
"""The gateway's id for the handoff of a request; never chosen by, or shown to, a client."""

PageId = NewType("PageId", int)
"""Index of a page in its pool, from 0."""

PageHash = NewType("PageHash", bytes)
"""16 bytes: the chained hash that names a full page (see `common.kv.prefix`)."""

TicketId = NewType("TicketId", int)
"""A pull in progress, numbered by the core that asked for it; unique in its process."""

StepId = NewType("StepId", int)
"""A pass of the model, numbered by the core that launched it; ascending in its process."""


class Role(StrEnum):
    """What a process does. Values appear on the wire, in logs and in metrics."""

    GATEWAY = auto()
    PREFILL = auto()
    DECODE = auto()
