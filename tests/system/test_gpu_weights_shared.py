"""Real processes share one copy of a model's weights on a GPU, whichever of them dies.

CUDA's driver is replaced, and no more than that: by one whose memory is files, see `FakeDriver`.
"""

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from common.kernels.cpu import native
from common.model.load import load_model
from tests.conformance.fake_driver import FILE_NAME
from tests.system.one_sequence import OneSequence
from tests.unit.model.small_models import random_weights, write_safetensors

ROOT = Path(__file__).parents[2]
TOKENS = list(range(3, 23))

HOLDER = """
import hashlib, sys, time
from pathlib import Path
import torch
from common.errors import SetupError
from common.kernels.cpu import native
from common.kernels.matrix import plain
from common.model import load
from tests.conformance.fake_driver import FakeCuda
from tests.system.one_sequence import OneSequence

native.set_aside("a GPU computes")
cuda = FakeCuda()
load.Cuda = lambda device: cuda
key = load._sharing_key
load._sharing_key = lambda name, identity, dtype, kept: key(name, identity, torch.float32, kept)
filled, waited = [], set()

def report(what, done_bytes, of_bytes):
    if done_bytes:
        filled.append(what)
        time.sleep(0.05)
    else:
        waited.add(what)

model, run_dir, dtype, tokens, cuda.fake.refuses_import = sys.argv[1:]
try:
    loaded = load.load_model(
        Path(model), getattr(torch, dtype), Path(run_dir), 64, report, device=cuda.device
    )
except SetupError as error:
    sys.exit(f"refused: {error}")

def say(*told):
    logits = OneSequence(loaded.model, 64).run([int(token) for token in tokens.split()])
    print(*told, hashlib.sha256(logits.numpy().tobytes()).hexdigest(), flush=True)

say(len(filled), "+".join(waited).replace(" ", "_") or "-")
for line in sys.stdin:
    if line == "write\\n":
        plain(loaded.model.blocks[0].down.weight_OI).zero_()
    say()
"""


class Holder:
    """A process that holds the weights until it is killed."""

    def __init__(
        self, model: Path, run_dir: Path, dtype: str = "float32", *, refuses: str = ""
    ) -> None:
        """`refuses`, if anything: its driver takes no memory of another process."""
        tokens = " ".join(map(str, TOKENS))
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(model), str(run_dir), dtype, tokens, refuses],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> tuple[bool, str, str]:
        """Waits. Whether it read the file itself, whom it waited for, what it computes."""
        n_filled, waited, computed = self._line()
        return int(n_filled) > 0, waited, computed

    def computes(self) -> str:
        self.tell("again")
        return self._line()[0]

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def memory(self) -> tuple[str, str]:
        """The weights' file, and what the process may do with it."""
        for line in Path(f"/proc/{self.process.pid}/maps").read_text().splitlines():
            if FILE_NAME in line:
                _, rights, _, _, inode, _ = line.split(maxsplit=5)
                return inode, rights
        raise AssertionError("no weights are mapped")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _line(self) -> list[str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().split()
        assert line, self.process.communicate()[1]
        return line


@pytest.mark.slow
def test_two_share_one_copy_whichever_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, run_dir = tmp_path / "model", tmp_path / "run"
    write_safetensors(model, random_weights())
    monkeypatch.setattr(native, "_missing", "as in the holders")
    alone = load_model(model, torch.float32, None, 64).model
    wanted = hashlib.sha256(OneSequence(alone, 64).run(TOKENS).numpy().tobytes()).hexdigest()

    holders = [Holder(model, run_dir) for _ in range(2)]
    try:
        said = [holder.ready() for holder in holders]
        assert sorted(filled for filled, _, _ in said) == [False, True]  # at once, yet read once
        loader, other = holders if said[0][0] else reversed(holders)
        assert [computed for _, _, computed in said] == [wanted] * 2
        assert f"waiting_for_process_{loader.process.pid},_which_loads_the_weights" in (
            waited for _, waited, _ in said
        )
        assert loader.memory() == other.memory()
        assert loader.memory()[1] == "r--s"

        loader.kill()
        assert other.computes() == wanted
        holders += [third := Holder(model, run_dir), stranger := Holder(model, run_dir, "float16")]
        holders.append(unable := Holder(model, run_dir, refuses="all"))
        assert third.ready() == (False, "-", wanted)
        assert third.memory() == other.memory()
        assert unable.ready() == (True, "-", wanted)  # a copy of its own
        _, refused = stranger.process.communicate()
        assert "refused: the weights that another process has handed over" in refused

        third.tell("write")
        assert third.process.wait() == -signal.SIGSEGV
        assert other.computes() == wanted

        other.kill()
        unable.kill()
        holders.append(last := Holder(model, run_dir))
        assert last.ready() == (True, "-", wanted)
    finally:
        for holder in holders:
            holder.kill()
