"""How a GPU's memory is divided: what its workers may take, what one needs beside its pages, and
what that leaves for them. Pure.

A worker counts what it takes itself, and its part of what those on the device share, never what the
device has free: so it makes no difference who of them starts first, or loads what is shared.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from common.config import WorkerConfig
from common.errors import SetupError
from common.spellings import cuda_number

CONTEXT_BYTES = 768 << 20
"""Of CUDA's context, its libraries and compiled kernels, in each process: a bound, since no process
can ask for its own part."""

ROUNDING = 1e-9  # of a sum of shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Of one worker, beside its pages."""

    weights_bytes: int  # its own, and its part of those that are shared
    activations_bytes: int  # the most that the longest pass takes beside the weights
    graphs_bytes: int = 0

    @property
    def all_bytes(self) -> int:
        return CONTEXT_BYTES + self.weights_bytes + self.activations_bytes + self.graphs_bytes


def part_bytes(common_bytes: int, n_sharers: int) -> int:
    """Of what workers share, what each of them counts as its own: together no less than there is.

    All count it, and always: who loaded it, who has died since, and who could not open it and has
    a copy beside it.
    """
    return -(-common_bytes // n_sharers)


def logits_bytes(n_rows: int, n_vocab: int) -> int:
    """Of float32 logits."""
    return 4 * n_rows * n_vocab


def graphs_bytes(activations_bytes: int, max_num_seqs: int, n_vocab: int) -> int:
    """Of all graphs together, which share the memory of the largest: a step's activations are no
    more than those of the longest pass, which has as many rows, and its logits are there twice."""
    return activations_bytes + 2 * logits_bytes(max_num_seqs, n_vocab)


def draws_bytes(max_num_seqs: int, n_vocab: int) -> int:
    """Of what graphs draw by: for each row counts and biases of all tokens, and a bit of each."""
    counts_bytes = biases_bytes = logits_bytes(max_num_seqs, n_vocab)
    return counts_bytes + biases_bytes + max_num_seqs * (n_vocab // 8 + 4)


def pages_bytes(device_bytes: int, utilization: float, needs: Needs) -> int:
    """What is left for pages. Raises SetupError, with all numbers, where nothing is."""
    may_take = int(device_bytes * utilization)
    left = may_take - needs.all_bytes
    if left <= 0:
        raise SetupError(
            f"--gpu-memory-utilization {utilization:g} of {device_bytes} bytes is {may_take}, and "
            f"weights ({needs.weights_bytes}), activations ({needs.activations_bytes}), graphs "
            f"({needs.graphs_bytes}) and CUDA itself ({CONTEXT_BYTES}) leave nothing for pages: "
            "raise it, lower --max-num-batched-tokens or --max-num-seqs, or use another device"
        )
    return left


def check_shares(workers: Sequence[WorkerConfig]) -> None:
    """Raises SetupError where workers on one device may take more than there is."""
    shares: defaultdict[int, float] = defaultdict(float)
    for worker in workers:
        number = cuda_number(worker.device)
        if number is not None:
            shares[number] += worker.gpu_memory_utilization
    for number, share in shares.items():
        if share > 1 + ROUNDING:
            names = [w.name for w in workers if cuda_number(w.device) == number]
            raise SetupError(
                f"--gpu-memory-utilization of {', '.join(names)}, all on cuda:{number}, is "
                f"{share:g} together: 1 at most; --prefill.gpu-memory-utilization and "
                "--decode.gpu-memory-utilization divide it"
            )
