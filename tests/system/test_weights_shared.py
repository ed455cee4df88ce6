"""Real processes share one copy of a model's weights, whichever of them dies."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WEIGHTS_BYTES = 134_515_008 * 2  # the default model's parameters in bfloat16

HOLDER = """
import sys
from pathlib import Path
import torch
from common.kernels.matrix import plain
from common.model.load import load_model
filled = []
loaded = load_model(
    Path(sys.argv[1]), torch.bfloat16, Path(sys.argv[2]), 1024,
    lambda name, done_bytes, of_bytes: filled.append(name) if done_bytes else None,
)
total = sum(float(plain(block.down.weight_OI).double().sum()) for block in loaded.model.blocks)
print(len(filled), total, flush=True)
sys.stdin.read()
"""


class Holder:
    """A process that holds the default model's weights until it is killed."""

    def __init__(self, model: Path, run_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(model), str(run_dir)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> tuple[bool, str]:
        """Waits. Whether it read the file itself, and a sum over its weights."""
        assert self.process.stdout is not None
        n_filled, total = self.process.stdout.readline().split()
        return int(n_filled) > 0, total

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def memory(self) -> dict[str, int]:
        """Bytes of the weights' mapping: resident, this process's share of it, its own pages."""
        sums = {"Rss": 0, "Pss": 0, "Private_Dirty": 0}
        inside = False
        for line in Path(f"/proc/{self.process.pid}/smaps").read_text().splitlines():
            name, _, rest = line.partition(":")
            if " " in name:  # a mapping's first line: addresses, rights, ..., path
                inside = "memfd:baton-weights" in line
            elif inside and name in sums:
                sums[name] += int(rest.split()[0]) * 1024
        return sums


def check_each_has_half(holders: list[Holder]) -> None:
    for holder in holders:
        memory = holder.memory()
        assert memory["Rss"] >= WEIGHTS_BYTES
        assert memory["Pss"] == pytest.approx(memory["Rss"] / 2, rel=0.01)
        assert memory["Private_Dirty"] == 0


def test_two_share_one_copy_and_a_third_gets_it_after_the_servers_death(
    default_model: Path, tmp_path: Path
) -> None:
    holders = [Holder(default_model, tmp_path / "run") for _ in range(2)]
    try:
        said = [holder.ready() for holder in holders]
        assert sorted(filled for filled, _ in said) == [False, True]  # at once, yet read once
        assert said[0][1] == said[1][1]
        check_each_has_half(holders)
        holders.pop([filled for filled, _ in said].index(True)).kill()
        holders.append(Holder(default_model, tmp_path / "run"))
        assert holders[-1].ready() == (False, said[0][1])
        check_each_has_half(holders)
    finally:
        for holder in holders:
            holder.kill()
