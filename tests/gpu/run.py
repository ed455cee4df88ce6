"""What only a GPU can show: the kernels' results, and how fast they and pulls are beside the floors
that the same device sets in the same run. See `run.sh`.

Each part is a process with a time limit: one that fails, or hangs, takes no other with it. Not
measured is the delay of a second token behind the first.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

PARTS = {"tests": 150.0, "kernels": 100.0, "steps": 120.0, "pulls": 100.0}  # seconds at most
NO_GPU = "no GPU: torch sees no CUDA device, so nothing was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`floor_ms`: what the bytes or operations take at the device's own rate. `bar`: the share of
    that rate to be reached; None: it is only reported."""

    name: str
    ms: float
    floor_ms: float
    bar: float | None = None

    @property
    def share(self) -> float:
        return self.floor_ms / self.ms

    @property
    def line(self) -> str:
        said = "" if self.bar is None else f"  bar {self.bar:4.0%}"
        missed = "  !! missed" if self.bar is not None and self.share < self.bar else ""
        return (
            f"{self.name:<52} {self.ms:9.3f} ms, floor {self.floor_ms:9.3f} ms: {self.share:4.0%}"
            f"{said}{missed}"
        )


def run_part(name: str, limit_s: float) -> dict[str, object]:
    """What it found, or how it ended without."""
    command = [sys.executable, "-m", "tests.gpu.run", "--part", name]
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=False
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit_s:.0f} s"}
    lines = done.stdout.splitlines()
    say("\n".join(lines[:-1]))
    if done.returncode or not lines:
        return {"error": f"exit status {done.returncode}"}
    return json.loads(lines[-1])


def part_tests() -> dict[str, object]:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/gpu"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    say(done.stdout)
    return {"exit_status": done.returncode}


def part_kernels() -> dict[str, object]:
    from tests.gpu.kernels import rows

    return shown(rows)


def part_steps() -> dict[str, object]:
    from tests.gpu.steps import rows

    return shown(rows)


def part_pulls() -> dict[str, object]:
    from tests.gpu.pulls import rows

    return shown(rows)


def shown(rows: Callable[[], list[Row]]) -> dict[str, object]:
    measured = rows()
    for row in measured:
        say(row.line)
    return {"rows": [{**asdict(row), "share": row.share} for row in measured]}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Status 1: a part failed, or a bar was missed."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("--part", choices=list(PARTS), help="that one alone")
    parser.add_argument("--output", type=Path, help="the JSON goes there, too")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        say(NO_GPU)
        say(json.dumps({"gpu": None}))
        return 0
    if options.part is not None:
        parts = {
            "tests": part_tests,
            "kernels": part_kernels,
            "steps": part_steps,
            "pulls": part_pulls,
        }
        say(json.dumps(parts[options.part]()))
        return 0
    say(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    found = {name: run_part(name, limit_s) for name, limit_s in PARTS.items()}
    for name, result in found.items():
        if "error" in result:
            say(f"{name}: {result['error']}")
    encoded = json.dumps({"gpu": torch.cuda.get_device_name(), **found})
    if options.output is not None:
        options.output.write_text(encoded + "\n")
    say(encoded)
    return int(any(has_failed(result) for result in found.values()))


def has_failed(result: dict[str, object]) -> bool:
    rows = result.get("rows", [])
    assert isinstance(rows, list)
    missed = any(row["bar"] is not None and row["share"] < row["bar"] for row in rows)
    return "error" in result or result.get("exit_status", 0) != 0 or missed


if __name__ == "__main__":
    sys.exit(main())
