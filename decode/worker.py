"""The decode worker's process: `main(config)`, or `python -P -m decode.worker --config-fd N`.

Wires the decode core to the loop, the model and the memory that all workers share the code of.
"""

import logging
import sys
import time
from collections.abc import Callable

from common.config import WorkerConfig
from common.engine.device_thread import Waiting
from common.engine.kind import Kind, Parts
from common.engine.plan import PassPlan
from common.engine.runner import Runner
from common.engine.sizing import Sizes
from common.engine.stream import Stream
from common.engine.worker import entry, run_worker
from common.ids import InstanceId
from common.log import line
from decode.compute import DecodeOptions
from decode.core import DecodeCore
from decode.graphs import GraphRunner
from transfer.pool import make_pages
from transfer.pulls import open_pulls
from transfer.tiers.host import HostPages

PROGRESS_S = 2.0

_log = logging.getLogger(__name__)


def make_core(config: WorkerConfig, parts: Parts) -> DecodeCore:
    """The part that decides."""
    options = DecodeOptions(
        fingerprint=parts.fingerprint,
        chunk_tokens=config.chunk_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        plan_ahead=_plans_beside_passes(config),
    )
    return DecodeCore(parts.limits, parts.pool, options, host=parts.host)


def _plans_beside_passes(config: WorkerConfig) -> bool:
    """That takes time from a pass, unless nobody computes on the loop's CPU."""
    has_a_core_to_spare = config.cpus is not None and len(config.cpus) > config.threads
    return has_a_core_to_spare or config.device not in ("auto", "cpu")


def begin_passes(
    runner: Runner, stream: Stream, config: WorkerConfig, size: Sizes, n_vocab: int
) -> Callable[[PassPlan], Waiting]:
    """By captured graphs."""
    began = time.monotonic()
    graphs = GraphRunner(
        runner,
        stream,
        max_num_seqs=config.max_num_seqs,
        max_model_len=size.max_model_len,
        n_vocab=n_vocab,
    )

    said_at = began

    def report(n_done: int, n_all: int) -> None:
        """A line now and then, and a last one."""
        nonlocal said_at
        now, n_bytes = time.monotonic(), stream.graphs_bytes
        if n_done == n_all:
            _log.info(line("captured_graphs", graphs=n_all, seconds=now - began, bytes=n_bytes))
        elif now - said_at >= PROGRESS_S:
            said_at = now
            _log.info(line("capturing_graphs", done=n_done, of=n_all, bytes=n_bytes))

    graphs.capture(report)
    return graphs.begin


KIND = Kind(
    make_core=make_core,
    make_pages=make_pages,
    make_host_pages=HostPages,
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
