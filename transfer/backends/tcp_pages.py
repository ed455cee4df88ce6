"""Where the pages that go by TCP come from and go to: memory, or a device by way of pinned memory.

Nothing here waits for a device, but for `finish`. Must not know who sends or receives.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import zmq

from transfer.api import Region
from transfer.backends.tcp_messages import REQUEST_BYTES
from transfer.cuda_memory import DevicePages
from transfer.pinned import PinnedRing, Slot


class Reading(Protocol):
    """Pages that are being read out of a region."""

    @property
    def is_done(self) -> bool:
        """Their bytes were read, and are not read again. RuntimeError: the device has failed."""
        ...

    def frames(self) -> list[zmq.Frame]:
        """One each, to be sent or dropped. Once, when done; or `drop`."""
        ...

    def drop(self) -> None: ...


class PageSource(Protocol):
    """Reads a region for its server. Used by one thread."""

    @property
    def region(self) -> Region: ...

    @property
    def has_room(self) -> bool:
        """For one more reading, now."""
        ...

    def read(self, pages: Sequence[int]) -> Reading:
        """Begin to; of one request's worth."""
        ...

    def close(self) -> None:
        """When what was sent has left, or never will."""
        ...


class Writing(Protocol):
    """Pages that are being written into a region."""

    @property
    def is_done(self) -> bool:
        """They are there. RuntimeError: the device has failed."""
        ...

    def finish(self) -> None:
        """Returns when they are."""
        ...

    def close(self) -> None:
        """Once, when they are."""
        ...


class PageSink(Protocol):
    """Writes into a region for its puller. Used by one thread."""

    @property
    def has_room(self) -> bool: ...

    def write(self, pages: Sequence[int], frames: Sequence[zmq.Frame]) -> Writing:
        """Begin to; of one reply's worth, of which the frames are free on return."""
        ...

    def close(self) -> None: ...


def source_of(region: Region) -> PageSource:
    """Raises SetupError."""
    return DeviceSource(region) if isinstance(region, DevicePages) else MemorySource(region)


def sink_of(region: Region) -> PageSink:
    """Raises SetupError."""
    return DeviceSink(region) if isinstance(region, DevicePages) else MemorySink(region)


# --- memory --------------------------------------------------------------------------------------


class MemorySource:
    """Implements `PageSource`."""

    has_room = True

    def __init__(self, region: Region) -> None:
        self.region = region

    def read(self, pages: Sequence[int]) -> "_Copied":
        """The copy goes straight into ZeroMQ's messages, and is the only one on this side."""
        return _Copied([zmq.Frame(self.region.pages[page], copy=True) for page in pages])

    def close(self) -> None:
        """Nothing is kept."""


class _Copied:
    is_done = True

    def __init__(self, frames: list[zmq.Frame]) -> None:
        self._frames = frames

    def frames(self) -> list[zmq.Frame]:
        return self._frames

    def drop(self) -> None:
        """Nothing is kept."""


class MemorySink:
    """Implements `PageSink`."""

    has_room = True

    def __init__(self, region: Region) -> None:
        self._region = region

    def write(self, pages: Sequence[int], frames: Sequence[zmq.Frame]) -> "_Written":
        into = self._region.pages
        for page, frame in zip(pages, frames, strict=True):
            into[page] = np.frombuffer(frame.buffer, np.uint8)
        return _Written()

    def close(self) -> None:
        """Nothing is kept."""


class _Written:
    is_done = True

    def finish(self) -> None:
        """It is."""

    def close(self) -> None:
        """Nothing is kept."""


# --- a device ------------------------------------------------------------------------------------


class DeviceSource:
    """Implements `PageSource`: the device copies into slots, and ZeroMQ sends out of them."""

    def __init__(self, region: DevicePages) -> None:
        self.region = region
        self._ring = PinnedRing(region, REQUEST_BYTES)

    @property
    def has_room(self) -> bool:
        return self._ring.n_free > 0

    def read(self, pages: Sequence[int]) -> "_Leaving":
        slot = self._ring.take()
        self._ring.begin_out(pages, slot)
        return _Leaving(self._ring, slot, len(pages), self.region.pages.shape[1])

    def close(self) -> None:
        self._ring.close()


class _Leaving:
    def __init__(self, ring: PinnedRing, slot: Slot, n_pages: int, page_bytes: int) -> None:
        self._ring, self._slot = ring, slot
        self._n_pages, self._page_bytes = n_pages, page_bytes

    @property
    def is_done(self) -> bool:
        return self._slot.mark.is_passed

    def frames(self) -> list[zmq.Frame]:
        """Of the slot's own memory, until ZeroMQ has sent or dropped them; where it keeps too many
        slots, copies of it."""
        may_lend = self._ring.may_lend
        n_bytes = self._n_pages * self._page_bytes
        pages = self._slot.bytes[:n_bytes].reshape(self._n_pages, self._page_bytes)
        # None: copied where they are so small that this takes less than to keep track of them.
        frames = [zmq.Frame(page, track=True, copy=None if may_lend else True) for page in pages]
        tracker = zmq.MessageTracker(*frames)
        self._ring.lend(self._slot, lambda: tracker.done)
        return frames

    def drop(self) -> None:
        self._ring.give_back(self._slot)


class DeviceSink:
    """Implements `PageSink`: what came goes into slots, and the device copies out of them."""

    def __init__(self, region: DevicePages) -> None:
        self._ring = PinnedRing(region, REQUEST_BYTES)

    @property
    def has_room(self) -> bool:
        return self._ring.n_free > 0

    def write(self, pages: Sequence[int], frames: Sequence[zmq.Frame]) -> "_Arriving":
        slot, at = self._ring.take(), 0
        for frame in frames:
            slot.bytes[at : at + len(frame)] = np.frombuffer(frame.buffer, np.uint8)
            at += len(frame)
        self._ring.begin_in(slot, pages)
        return _Arriving(self._ring, slot)

    def close(self) -> None:
        self._ring.close()


class _Arriving:
    def __init__(self, ring: PinnedRing, slot: Slot) -> None:
        self._ring, self._slot = ring, slot

    @property
    def is_done(self) -> bool:
        return self._slot.mark.is_passed

    def finish(self) -> None:
        self._ring.finish()

    def close(self) -> None:
        self._ring.give_back(self._slot)
