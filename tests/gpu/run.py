"""What only a GPU can show, within minutes: see `run.sh`.

Each part is a process with a time limit: one that fails, or hangs, takes no other with it. A row is
shown, and written to the file, as it comes. Status 1: a part failed, or a bar was missed.
"""

import argparse
import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import torch

from tests.gpu.rows import ROW, WANTED, Row, say

TOTAL_S = 465.0
LEAST_S = 15.0  # to begin a part with
LAST_WORDS_S = 4.0  # before its end a part that hangs shows where
NO_GPU = "no GPU: torch sees no CUDA device, so nothing was measured"


@dataclass(frozen=True, slots=True)
class Part:
    """`tests.gpu.NAME.measure(found)` emits the rows; False: something failed."""

    limit_s: float
    wanted: tuple[str, ...] = ()
    for_missed: tuple[str, ...] = ()  # begun only where one of these rows was missed


PARTS = {
    "kernels": Part(70.0, ("decode attention", "prefill attention")),
    "steps": Part(120.0, ("step 1", "step 64", "prompt")),
    "pulls": Part(40.0, ("pull",)),
    "tokens": Part(90.0, ("tokens",)),
    "handoff": Part(140.0, ("second token", "busy")),
    "checks": Part(120.0),
    "fp8": Part(40.0),
    "tiles": Part(120.0, for_missed=("decode attention", "prefill attention")),
}


@dataclass(slots=True)
class Report:
    """All that is known, in a file too, from row to row."""

    gpu: str
    path: Path
    rows: list[Row] = field(default_factory=list[Row])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def encoded(self) -> str:
        rows = [row.as_dict() for row in self.rows]
        missing = [key for key in WANTED if key not in {row.key for row in self.rows}]
        return json.dumps(
            {
                "gpu": self.gpu,
                "torch": torch.__version__,
                "rows": rows,
                "not_measured": missing,
                "errors": self.errors,
                "seconds": self.seconds,
            }
        )

    def write(self) -> None:
        beside = self.path.with_name(self.path.name + ".new")
        beside.write_text(self.encoded() + "\n")
        beside.replace(self.path)

    def hear(self, line: str) -> None:
        """A line of a part's output."""
        if not line.startswith(ROW):
            say(line)
            return
        row = Row(**json.loads(line.removeprefix(ROW)))
        self.rows.append(row)
        say(row.line)
        self.write()

    def missed(self, keys: Sequence[str]) -> bool:
        return any(row.key in keys and row.met is False for row in self.rows)

    def verdict(self, keys: Iterable[str]) -> bool:
        """Whether those were met; says so of each."""
        by_key = {row.key: row for row in self.rows}
        met = True
        for key in keys:
            row = by_key.get(key)
            said = f"{WANTED[key].title:<58} not measured" if row is None else row.line
            met &= row is not None and row.met is True
            say(said)
        return met


def run_part(name: str, limit_s: float, report: Report) -> str:
    """Why it failed; "": it did not."""
    command = [sys.executable, "-m", "tests.gpu.run", "--within", f"{limit_s:.1f}", "--one", name]
    command += ["--output", str(report.path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    )
    timed_out = threading.Event()

    def end() -> None:
        timed_out.set()
        _kill(process.pid)

    timer = threading.Timer(limit_s, end)
    timer.start()
    with process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                report.hear(line.rstrip("\n"))
            status = process.wait()
        finally:
            timer.cancel()
            _kill(process.pid)  # and what it has started
    if timed_out.is_set():
        return f"not done after {limit_s:.0f} s"
    return f"exit status {status}" if status else ""


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def run_parts(
    names: Iterable[str], report: Report, run: Callable[[str, float, Report], str] = run_part
) -> bool:
    """Within the time for all of them. Whether all was well, and every bar met."""
    names, ends_at = list(names), time.monotonic() + TOTAL_S
    for name in names:
        part, left_s = PARTS[name], ends_at - time.monotonic()
        if part.for_missed and not report.missed(part.for_missed):
            continue
        say(f"--- {name}, {min(part.limit_s, left_s):.0f} s at most{_state_of_gpu()}")
        began = time.monotonic()
        error = "no time was left" if left_s < LEAST_S else ""
        error = error or run(name, min(part.limit_s, left_s), report)
        report.seconds[name] = round(time.monotonic() - began, 1)
        if error:
            report.errors[name] = error
            say(f"!! {name}: {error}")
        report.write()
    say("--- all of it")
    met = report.verdict(key for name in names for key in PARTS[name].wanted)
    for name, error in report.errors.items():
        say(f"!! {name}: {error}")
    say(report.encoded())
    return met and not report.errors


def _state_of_gpu() -> str:
    """Clocks and temperature, which rates depend on; "": they cannot be asked for."""
    asked = "clocks.sm,clocks.mem,power.draw,temperature.gpu,memory.used"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return f"; {asked}: {done.stdout.splitlines()[0]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--output", type=Path, help="JSON goes there, too, as it comes")
    parser.add_argument("--one", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--within", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        say(NO_GPU)
        say(json.dumps({"gpu": None}))
        return 0
    if options.one is not None:
        faulthandler.dump_traceback_later(max(1.0, options.within - LAST_WORDS_S), exit=True)
        return int(not import_module(f"tests.gpu.{options.one}").measure(_found(options.output)))
    with tempfile.TemporaryDirectory() as beside:  # later parts read what earlier ones have found
        path = options.output or Path(beside) / "found.json"
        report = Report(torch.cuda.get_device_name(), path)
        say(f"{report.gpu}, torch {torch.__version__}, CUDA {torch.version.cuda}")
        return int(not run_parts(options.parts, report))


def _found(path: Path) -> dict[str, float]:
    """What earlier parts have measured, by row."""
    if not path.exists():
        return {}
    return {row["name"]: row["measured"] for row in json.loads(path.read_text())["rows"]}


if __name__ == "__main__":
    sys.exit(main())
