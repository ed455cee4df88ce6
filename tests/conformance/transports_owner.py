"""A process that owns pages: run as a script, driven by lines of JSON on its standard input.

Every page's content is a function of (page, generation), so a reader can tell torn from whole.
"""

import argparse
import json
import resource
import sys
import threading
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.ids import InstanceId
from common.messages import RegionKey
from common.rundir import host_id
from tests.conformance.fake_cuda import Gpu
from transfer.api import Copy
from transfer.cuda_memory import DevicePages
from transfer.memory import Fence, SharedPages
from transfer.open import open_transport


def content(page: int, generation: int, page_bytes: int) -> NDArray[np.uint8]:
    """[page_bytes]; two lives of a page, or two pages of a life, have no word in common place."""
    words = np.arange(page_bytes // 8, dtype=np.uint64)
    words += np.uint64((page * 1_000_003 + generation * 0x9E3779B97F4A7C15) % 2**64)
    return words.view(np.uint8)


class Owner:
    """Writes pages as a worker does: raise the generation, fence, write, announce."""

    def __init__(self, memory: SharedPages | DevicePages) -> None:
        self.memory = memory
        self.fence = Fence()
        self.announced = [0] * memory.pages.shape[0]
        self.churning = threading.Event()
        self.thread: threading.Thread | None = None

    def write(self, pages: list[int]) -> list[tuple[int, int]]:
        for page in pages:
            generation = int(self.memory.generations[page]) + 1
            self.memory.generations[page] = generation
            self.fence()
            self.memory.pages[page] = content(page, generation, self.memory.pages.shape[1])
            self.announced[page] = generation
        return [(page, self.announced[page]) for page in pages]

    def churn(self, pages: list[int]) -> None:
        """Reuse these pages until calmed, as fast as can be."""
        self.churning.set()
        self.thread = threading.Thread(target=self._churn, args=(pages,))
        self.thread.start()

    def _churn(self, pages: list[int]) -> None:
        while self.churning.is_set():
            self.write(pages)

    def calm(self) -> None:
        self.churning.clear()
        if self.thread is not None:
            self.thread.join()


def main() -> None:  # noqa: PLR0915  one order after the other
    parser = argparse.ArgumentParser()
    parser.add_argument("--transport", required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--pages", type=int, required=True)
    parser.add_argument("--page-bytes", type=int, required=True)
    parser.add_argument("--timeout-s", type=float, required=True)
    parser.add_argument("--gpu", type=partial(msgspec.json.decode, type=Gpu))
    args = parser.parse_args()
    device = None if args.gpu is None else args.gpu.open()[1]
    if device is None:
        memory = SharedPages(args.pages, args.page_bytes)
    else:
        memory = DevicePages(device, args.pages, args.page_bytes)
    owner = Owner(memory)
    transport = open_transport(
        args.transport,
        instance=InstanceId(args.instance),
        host=host_id(),
        run_dir=args.run_dir,
        listen_host="127.0.0.1",
        wake=lambda: None,
        progress_timeout_s=args.timeout_s,
        device=device,
    )
    key = transport.register(memory)
    say(msgspec.to_builtins(key))
    for line in sys.stdin:
        order = json.loads(line)
        match order["do"]:
            case "write":
                say(owner.write(order["pages"]))
            case "announce":
                say([(page, owner.announced[page]) for page in order["pages"]])
            case "churn":
                owner.churn(order["pages"])
                say(None)
            case "calm":
                owner.calm()
                say(None)
            case "pull":
                remote = msgspec.convert(order["remote"], RegionKey)
                copies = tuple(Copy(*copy) for copy in order["copies"])
                say(transport.pull(remote.owner, remote, key, copies))
            case "poll":
                say(transport.poll(order["ticket"]))
            case "stats":
                stats = msgspec.to_builtins(transport.stats())
                usage = resource.getrusage(resource.RUSAGE_SELF)
                peak_mib, n_faults = usage.ru_maxrss / 1024, usage.ru_minflt
                n_fds = len(list(Path("/proc/self/fd").iterdir()))
                alive = transport.alive
                say(
                    {
                        **stats,
                        "alive": alive,
                        "peak_mib": peak_mib,
                        "n_fds": n_fds,
                        "n_faults": n_faults,
                    }
                )
    owner.calm()
    transport.close()


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
