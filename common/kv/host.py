"""Host memory beside a worker's pool, as the one who decides sees it."""

from dataclasses import dataclass

from common.kv.pages import PagePool
from common.messages import RegionKey


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Where pages are spilled to. `pool`: of host pages, which nobody else takes."""

    key: RegionKey  # where to pull them back from; its owner is no worker
    pool: PagePool
