"""Pinned memory between the pages of a device and the sockets of this process: a fixed number of
slots that go round.

One side fills a slot and the other empties it; it comes back when neither uses it. Must not know
what is sent, or to whom.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from common.errors import SetupError
from transfer.cuda_device import CudaDevice, CudaMark, CudaStream, PinnedMemory
from transfer.cuda_memory import DevicePages

RING_BYTES = 16 * 2**20
"""Twice what one reader may have asked for and not received: the device fills or empties one half
while sockets have the other."""

FEWEST_SLOTS = 4  # where slots are so large that RING_BYTES would be fewer

LOOK_S = 50e-6
"""Between two looks at copies that are under way: about as long as one takes."""


class Slot:
    """Used by whoever has taken it. `mark` is passed when the last copy of it is done."""

    def __init__(self, device: CudaDevice, memory: PinnedMemory, at: int, n_bytes: int) -> None:
        self.address = memory.address + at
        self.bytes = memory.bytes[at : at + n_bytes]
        self.mark = CudaMark(device)


class PinnedRing:
    """Slots for the pages of one region. Used by one thread."""

    def __init__(self, region: DevicePages, slot_bytes: int) -> None:
        """A slot holds a page at least. Raises SetupError where there is no such memory."""
        _, self._page_bytes = region.pages.shape
        self._pages_at = region.pages.address
        slot_bytes = max(slot_bytes, self._page_bytes)
        self.n_slots = max(FEWEST_SLOTS, RING_BYTES // slot_bytes)
        self.n_bytes = self.n_slots * slot_bytes
        device = region.device
        try:
            self._memory = PinnedMemory(device, self.n_bytes)
            self._stream = CudaStream(device)
            starts = range(0, self.n_bytes, slot_bytes)
            self._slots = [Slot(device, self._memory, at, slot_bytes) for at in starts]
        except RuntimeError as error:
            raise SetupError(
                f"{self.n_bytes} bytes of pinned memory are not to be had: {error}"
            ) from error
        self._free = deque(self._slots)
        self._lent: list[tuple[Slot, Callable[[], bool]]] = []

    @property
    def n_free(self) -> int:
        self._take_back()
        return len(self._free)

    def take(self) -> Slot:
        """Callers have looked at `n_free`."""
        return self._free.popleft()

    def give_back(self, slot: Slot) -> None:
        """No copy of it is under way."""
        self._free.append(slot)

    @property
    def may_lend(self) -> bool:
        """Half of the slots never leave, so that a reader that takes nothing stops no other."""
        self._take_back()
        return len(self._lent) < self.n_slots // 2

    def lend(self, slot: Slot, is_read: Callable[[], bool]) -> None:
        """It comes back when whoever reads it does so no more."""
        self._lent.append((slot, is_read))

    def _take_back(self) -> None:
        lent, self._lent = self._lent, []
        for slot, is_read in lent:
            if is_read():
                self._free.append(slot)
            else:
                self._lent.append((slot, is_read))

    # --- copies ------------------------------------------------------------------------------

    def begin_out(self, pages: Sequence[int], slot: Slot) -> None:
        """Begin to copy pages into the slot, one after the other."""
        self._stream.copy((slot.address + at, there, n) for at, there, n in self._runs(pages))
        self._stream.place(slot.mark)

    def begin_in(self, slot: Slot, pages: Sequence[int]) -> None:
        """The other way."""
        self._stream.copy((there, slot.address + at, n) for at, there, n in self._runs(pages))
        self._stream.place(slot.mark)

    def finish(self) -> None:
        """Returns when all copies are done. RuntimeError: the device has failed."""
        self._stream.finish()

    def _runs(self, pages: Sequence[int]) -> list[tuple[int, int, int]]:
        """(offset in the slot, address on the device, bytes): pages that lie together are one."""
        n = self._page_bytes
        runs: list[tuple[int, int, int]] = []
        for i, page in enumerate(pages):
            there = self._pages_at + page * n
            if runs and there == runs[-1][1] + runs[-1][2]:
                runs[-1] = (runs[-1][0], runs[-1][1], runs[-1][2] + n)
            else:
                runs.append((i * n, there, n))
        return runs

    def close(self) -> None:
        """Once, when nobody reads what was lent."""
        with suppress(RuntimeError):  # the device has failed, and copies nothing
            self._stream.finish()
        for slot in self._slots:
            slot.mark.close()
        self._stream.close()
        self._memory.close()
