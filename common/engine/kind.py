"""What makes a prefill or a decode worker of it: its core, its memory, its way to compute. Data and
types only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from common.config import WorkerConfig
from common.curve import CurveKey
from common.engine.device_thread import Waiting
from common.engine.plan import PassPlan
from common.engine.runner import Runner
from common.engine.shell import Core, Puller
from common.engine.sizing import Sizes
from common.engine.stream import Stream
from common.ids import InstanceId
from common.kv.host import HostMemory
from common.kv.pages import PagePool
from common.messages import Limits, RegionKey
from common.values import TransportName


class Pages(Protocol):
    """Memory for a pool (see `transfer.api.Region`)."""

    @property
    def pages(self) -> Any: ...  # noqa: ANN401 - see `common.kv.cache.PageMemory`

    @property
    def generations(self) -> NDArray[np.uint64]: ...

    @property
    def fd(self) -> int | None: ...

    def close(self) -> None: ...


class Mover(Puller, Protocol):
    """Moves pages in and out of the pool that it was made for."""

    @property
    def key(self) -> RegionKey:
        """What peers need to reach the pool."""
        ...

    @property
    def host_key(self) -> RegionKey | None:
        """What it takes to pull from host memory; None: there is none."""
        ...

    def close(self) -> None: ...


class OpenMover(Protocol):
    """Makes the pool reachable, and reaches others."""

    def __call__(  # noqa: PLR0913  see `transfer.pulls.open_pulls`
        self,
        name: TransportName,
        pool: Pages,
        *,
        instance: InstanceId,
        run_dir: Path,
        listen_host: str,
        wake: Callable[[], None],
        curve: CurveKey | None,
        host_memory: Pages | None = None,
    ) -> Mover: ...


class BeginPasses(Protocol):
    """Makes ready, on a device that goes on by itself, what passes are begun by."""

    def __call__(
        self, runner: Runner, stream: Stream, config: WorkerConfig, size: Sizes, n_vocab: int
    ) -> Callable[[PassPlan], Waiting]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a core is made from, beside the configuration."""

    limits: Limits
    pool: PagePool
    host: HostMemory | None
    fingerprint: str  # of pages


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What makes a prefill or a decode worker of it."""

    make_core: Callable[[WorkerConfig, Parts], Core]
    make_pages: Callable[[int, int, int | None], Pages]  # (n_pages, page_bytes, CUDA device)
    open_mover: OpenMover
    begin_passes: BeginPasses
    make_host_pages: Callable[[int, int], Pages] | None = None  # None: it spills nothing
