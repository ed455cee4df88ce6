"""What can be known before a process is started or a model loaded: told at once, in one line.

Whatever the workers would find out by themselves, each of them after seconds, is asked here of the
same functions. Must not import torch.
"""

import socket
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from common.available import available_bytes, usable_cpus
from common.config import ServeConfig, WorkerConfig, resolve
from common.engine.gpu_memory import check_shares
from common.engine.identity import wanted
from common.engine.process import check_cpus
from common.engine.sizing import check_memory, check_page_dtype, context_of, sizes
from common.errors import SetupError
from common.ids import Role
from common.messages import ModelIdentity
from common.model.description import read_spec
from common.model.fingerprint import fingerprint
from common.model.spec import ModelSpec

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own: its builds for CPUs, a tenth of what the others take."""

_CONNECT_S = 1.0
_GREETING_S = 0.3  # a gateway speaks first
_ANSWER_S = 1.0


def check_torch() -> None:
    """Raises SetupError where workers would have nothing to compute with."""
    if find_spec("torch") is None:
        raise SetupError(
            "PyTorch is not installed, and workers compute with it: pip install torch --index-url "
            f"{CPU_INDEX} (for CPUs, 200 MB), or pip install torch (for GPUs, gigabytes); "
            "`baton check` tells which versions"
        )


def local_workers(config: ServeConfig, *, join: str) -> list[WorkerConfig]:
    """Those that a server of that configuration, its model settled, starts here."""
    return [
        worker
        for role in (Role.PREFILL, Role.DECODE)
        for worker in resolve(config, role, join=join, cpus=usable_cpus())
    ]


def checked(config: ServeConfig, workers: Sequence[WorkerConfig]) -> ModelIdentity:
    """What workers of that server must have, those included that join it later.

    `config` is settled (`model` is a path); `workers` are those of this machine. Raises SetupError
    where they could not be started.
    """
    path = Path(config.model or "")
    model = read_spec(path)
    context_of(config, model)
    check_processors(workers)
    check_pages(workers, model)
    return wanted(config, model, fingerprint(path))


def check_processors(workers: Sequence[WorkerConfig]) -> None:
    """Raises SetupError where a worker is to be pinned to CPUs that there are not."""
    for worker in workers:
        if worker.cpus is not None:
            check_cpus(worker.cpus)


def check_page_dtypes(workers: Sequence[WorkerConfig]) -> None:
    """Raises SetupError where a worker on a CPU is to keep pages that only GPUs can read."""
    for worker in workers:
        check_page_dtype(worker)


def check_pages(workers: Sequence[WorkerConfig], model: ModelSpec) -> None:
    """Raises SetupError where they do not fit the machine, or not one sequence fits them."""
    check_shares(workers)
    check_memory([sizes(worker, model) for worker in workers], available_bytes())


def check_join(address: str) -> None:
    """Raises SetupError if an HTTP server answers at that address, as the API's own would.

    Whoever does not answer may still be starting.
    """
    if address.startswith("tcp://") and _speaks_http(address.removeprefix("tcp://")):
        raise SetupError(
            f"--join {address}: an HTTP server answers there; the address to join is join= in the "
            "server's log (--control-port)"
        )


def _speaks_http(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as connection:
            connection.settimeout(_GREETING_S)
            with suppress(TimeoutError):
                connection.recv(1)
                return False
            connection.settimeout(_ANSWER_S)
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return connection.recv(5) == b"HTTP/"
    except (OSError, OverflowError):
        return False
