"""The prefill worker's process: `main(config)`, or `python -P -m prefill.worker --config-fd N`.

Wires the prefill core to the loop, the model and the memory that all workers share the code of.
"""

import sys
from collections.abc import Callable

from common.config import WorkerConfig
from common.engine.device_thread import Waiting
from common.engine.kind import Kind, Parts
from common.engine.pass_stream import PassStream
from common.engine.plan import PassPlan
from common.engine.runner import Runner
from common.engine.sizing import Sizes
from common.engine.stream import Stream
from common.engine.worker import entry, run_worker
from common.ids import InstanceId
from prefill.core import PrefillCore, PrefillOptions
from transfer.pool import make_pages
from transfer.pulls import open_pulls


def make_core(config: WorkerConfig, parts: Parts) -> PrefillCore:
    """The part that decides."""
    options = PrefillOptions(
        fingerprint=parts.fingerprint,
        chunk_tokens=config.chunk_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        plan_ahead=config.device not in ("auto", "cpu"),  # a CPU computes nothing meanwhile
    )
    return PrefillCore(parts.limits, parts.pool, options)


def begin_passes(
    runner: Runner,
    stream: Stream,
    config: WorkerConfig,
    size: Sizes,  # noqa: ARG001  see `common.engine.kind.BeginPasses`
    n_vocab: int,  # noqa: ARG001
) -> Callable[[PassPlan], Waiting]:
    """Each while the one before is computed."""
    passes = PassStream(runner, stream, most_draws=config.max_num_seqs)
    passes.warm_up()
    return passes.begin


KIND = Kind(
    make_core=make_core,
    make_pages=make_pages,
    open_mover=open_pulls,
    begin_passes=begin_passes,
)


def main(
    config: WorkerConfig, *, instance: InstanceId | None = None, parent: int | None = None
) -> int:
    """See `common.engine.worker.run_worker`."""
    return run_worker(KIND, config, instance=instance, parent=parent)


if __name__ == "__main__":
    entry(KIND, sys.argv[1:])
