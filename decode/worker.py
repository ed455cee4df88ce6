"""The decode worker's process: `main(config)`, or `python -P -m decode.worker --config-fd N`.

Wires the decode core to the loop, the model and the memory that all workers share the code of.
"""

import sys

from common.config import WorkerConfig
from common.engine.worker import Kind, Parts, entry, run_worker
from common.ids import InstanceId
from decode.compute import DecodeOptions
from decode.core import DecodeCore
from transfer.memory import SharedPages
from transfer.pulls import open_pulls
from transfer.tiers.host import HostPages


def make_core(config: WorkerConfig, parts: Parts) -> DecodeCore:
    """The part that decides."""
    options = DecodeOptions(
        fingerprint=parts.fingerprint,
        chunk_tokens=config.chunk_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        plan_ahead=_has_a_core_to_spare(config),
    )
    return DecodeCore(parts.limits, parts.pool, options, host=parts.host)


def _has_a_core_to_spare(config: WorkerConfig) -> bool:
    """Planning beside a pass takes time from it, unless nobody computes on the loop's CPU."""
    return config.cpus is not None and len(config.cpus) > config.threads


KIND = Kind(
    make_core=make_core,
    make_pages=SharedPages,
    make_host_pages=HostPages,
    open_mover=open_pulls,
)


def main(
    config: WorkerConfig, *, instance: InstanceId | None = None, parent: int | None = None
) -> int:
    """See `common.engine.worker.run_worker`."""
    return run_worker(KIND, config, instance=instance, parent=parent)


if __name__ == "__main__":
    entry(KIND, sys.argv[1:])
