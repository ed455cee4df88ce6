"""One copy of the weights for processes on one GPU, whichever dies: `tests/gpu/run.sh` runs it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from safetensors import safe_open

from tests.gpu.model_file import file_bytes, write_model
from tests.gpu.steps import LLAMA_3_8B

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SPEC = replace(LLAMA_3_8B, n_layers=2, vocab_size=32000)  # 1.4 GB

HOLDER = """
import hashlib, logging, sys
from pathlib import Path
import torch
from common.engine.device import open_device
from common.kernels.matrix import plain
from common.model.load import load_model

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
device = open_device("cuda:0", "bfloat16").torch
few = torch.ones(64, 64, dtype=torch.bfloat16, device=device)
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
    Path(sys.argv[1]), torch.bfloat16, Path(sys.argv[2]), 64, report, device=device
)
taken = before - free_bytes()
downs = [plain(block.down.weight_OI) for block in loaded.model.blocks]

def say(*told):
    total = sum(float(down.double().sum()) for down in downs)
    product = torch.ones(16, downs[0].shape[1], dtype=torch.bfloat16, device=device) @ downs[-1].T
    bits = hashlib.sha256(product.float().cpu().numpy().tobytes()).hexdigest()
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
    write_model(model, SPEC, torch.device("cuda:0"))
    n_bytes = file_bytes(SPEC)
    with safe_open(model / "model.safetensors", "pt") as file:
        downs = [file.get_tensor(name) for name in file.keys() if ".down_proj." in name]  # noqa: SIM118
    wanted = sum(float(down.double().sum()) for down in downs)

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
