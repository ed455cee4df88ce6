"""One copy of the weights for processes on one GPU, whichever dies: `tests/gpu/run.sh` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from common.kernels.matrix import plain
from common.model.load import load_model, weights_bytes
from tests.gpu.test_pair import SMOLLM2
from tests.system.test_families import random_model

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]

HOLDER = """
import hashlib, logging, sys
from pathlib import Path
import torch
from common.engine.device import open_device
from common.kernels.matrix import plain
from common.model.load import load_model

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
device = open_device("cuda:0", "float32").torch
few = torch.ones(8, 8, device=device)
few @ few  # the context and cuBLAS have taken their memory
filled = []

def free_bytes():
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]

def report(what, done_bytes, of_bytes):
    if done_bytes:
        filled.append(what)

before = free_bytes()
loaded = load_model(
    Path(sys.argv[1]), torch.float32, Path(sys.argv[2]), 64, report, device=device
)
taken = before - free_bytes()
downs = [plain(block.down.weight_OI) for block in loaded.model.blocks]

def say(*told):
    total = sum(float(down.double().sum()) for down in downs)
    product = torch.ones(16, downs[0].shape[1], device=device) @ downs[-1].T
    bits = hashlib.sha256(product.cpu().numpy().tobytes()).hexdigest()
    print(*told, total, bits, flush=True)

say(len(filled), taken, loaded.common_bytes)
for line in sys.stdin:
    if line == "write\\n":
        try:
            downs[0].add_(1)
            torch.cuda.synchronize(device)
        except RuntimeError as error:
            print("refused", str(error).splitlines()[0].replace(" ", "_"), flush=True)
        else:
            print("written", "-", flush=True)
    else:
        say()
"""


class Holder:
    """A process that holds the weights until it is killed."""

    def __init__(self, model: Path, run_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(model), str(run_dir)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        n_filled, taken, common, *computed = self.line()
        self.is_loader = int(n_filled) > 0
        self.taken_bytes = int(taken)  # of the device, by loading
        self.common_bytes = int(common)
        self.computed = computed

    def ask(self, word: str) -> list[str]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.line()

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line, "the process has died"
        return line

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_two_processes_have_one_copy_and_it_outlives_its_loader(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.driver")
    model, run_dir = tmp_path / "model", tmp_path / "run"
    random_model(SMOLLM2).save_pretrained(model)
    n_bytes = weights_bytes(model, torch.float32, "none")
    blocks = load_model(model, torch.float32, None, 64).model.blocks
    wanted = sum(float(plain(block.down.weight_OI).double().sum()) for block in blocks)

    holders = [first := Holder(model, run_dir)]
    try:
        assert first.is_loader
        assert n_bytes <= first.common_bytes <= first.taken_bytes
        assert float(first.computed[0]) == pytest.approx(wanted, rel=1e-6)
        holders.append(second := Holder(model, run_dir))
        assert not second.is_loader
        assert second.common_bytes == first.common_bytes
        assert second.taken_bytes < n_bytes / 4
        assert second.computed == first.computed

        first.kill()
        assert second.ask("again") == first.computed
        holders.append(third := Holder(model, run_dir))
        assert not third.is_loader
        assert third.taken_bytes < n_bytes / 4
        assert third.computed == first.computed

        answer, why = third.ask("write")
        assert answer == "refused", "a mapping for reading was written to"
        assert "access" in why or "invalid" in why
        assert second.ask("again") == first.computed

        for holder in (second, third):
            holder.kill()
        holders.append(last := Holder(model, run_dir))
        assert last.is_loader
        assert last.taken_bytes >= n_bytes  # the memory had gone with the last of them
        assert last.computed == first.computed
    finally:
        for holder in holders:
            holder.kill()
