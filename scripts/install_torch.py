"""Installs PyTorch into this Python, unless it has one: the build for CPUs where there is no NVIDIA
driver, if PyTorch's own index for them answers. Says how much it is about to fetch where that is
much, and asks where somebody can answer.

TORCH_INDEX names another index to take it from. Runs before anything is installed: standard library
only.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from urllib.request import Request, urlopen

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ANSWER_S = 4.0
MUCH_BYTES = 500_000_000
REPORTS_WITHOUT_FETCHING = (24, 1)  # of pip: those before download what they report
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
_ROOT = Path("/")
_OF_DRIVERS = ("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/wsl/lib/libcuda.so.1")


def main() -> int:
    """Returns pip's exit code, or 1 where it was not to be fetched."""
    if _has_torch():
        return 0
    requirement = torch_requirement(Path(__file__).parents[1] / "pyproject.toml")
    index = os.environ.get("TORCH_INDEX")
    if index is None and sys.platform == "linux" and not has_driver() and answers(CPU_INDEX):
        index = CPU_INDEX
    if index is not None:
        print(f"taking PyTorch from {index}", file=sys.stderr)
        # What it needs comes with all the rest: the index may lack it, or have old versions.
        return _pip("install", "--quiet", "--no-deps", "--index-url", index, requirement)
    if not _is_at_hand(requirement):
        sizes = sizes_of(urls_of(_report(requirement)))
        if sum(sizes.values()) >= MUCH_BYTES:
            print(told(sizes, has_driver=has_driver()), file=sys.stderr)
            if sys.stdin.isatty() and input("fetch it? [y/N] ").lower() not in ("y", "yes"):
                return 1
    return _pip("install", "--quiet", requirement)


def torch_requirement(pyproject: Path) -> str:
    """As the project declares it."""
    (requirement,) = tomllib.loads(pyproject.read_text())["project"]["optional-dependencies"][
        "torch"
    ]
    return requirement


def has_driver(root: Path = _ROOT) -> bool:
    """Of NVIDIA's: the machine has a GPU that PyTorch could use."""
    return any((root / name).exists() for name in _OF_DRIVERS)


def answers(index: str, within_s: float = ANSWER_S) -> bool:
    """Whether that index has PyTorch, and can be reached from here."""
    try:
        with urlopen(f"{index}/torch/", timeout=within_s) as answer:
            return answer.status == 200
    except (OSError, ValueError):
        return False


def urls_of(report: Mapping[str, object]) -> list[str]:
    """What pip would fetch, by its report."""
    items = report.get("install")
    assert isinstance(items, list)
    return [item["download_info"]["url"] for item in items]


def sizes_of(
    urls: Iterable[str], size_of: Callable[[str], int | None] | None = None
) -> dict[str, int]:
    """Bytes of those that have to be fetched, by file name; 0: the server does not tell."""
    remote = [url for url in urls if url.startswith(("http:", "https:"))]
    with ThreadPoolExecutor(8) as threads:
        sizes = threads.map(size_of or _size_of, remote)
    return {url.rpartition("/")[2]: size or 0 for url, size in zip(remote, sizes, strict=True)}


def told(sizes: Mapping[str, int], *, has_driver: bool) -> str:
    """What is said before much is fetched."""
    what = f"PyTorch with CUDA: {len(sizes)} files, {sum(sizes.values()) / 1e6:,.0f} MB to fetch"
    if has_driver:
        return f"there is an NVIDIA driver, so {what}"
    return (
        f"{CPU_INDEX} does not answer, and what pip finds instead is {what}.\n"
        "  A build for CPUs takes a tenth: set TORCH_INDEX to an index that has one, or install "
        f"its wheel first: {sys.executable} -m pip install FILE"
    )


def _has_torch() -> bool:
    try:
        version("torch")
    except PackageNotFoundError:
        return False
    return True


def _is_at_hand(requirement: str) -> bool:
    """Among the files that pip is told to look at, without any index."""
    quietly = ("--dry-run", "--quiet", "--no-deps", "--no-index", requirement)
    return _pip("install", *quietly, output=subprocess.DEVNULL) == 0


def _report(requirement: str) -> Mapping[str, object]:
    """Of what pip would install."""
    if _version_of("pip") < REPORTS_WITHOUT_FETCHING:
        _pip("install", "--quiet", "--upgrade", "pip")
    command = (*_PIP, "install", "--dry-run", "--quiet", "--report", "-", requirement)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else {"install": []}


def _version_of(distribution: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version(distribution).split(".")[:2] if part.isdigit())


def _size_of(url: str) -> int | None:
    try:
        with urlopen(Request(url, method="HEAD"), timeout=ANSWER_S) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, ValueError, TypeError):
        return None


def _pip(*arguments: str, output: int | None = None) -> int:
    command: Sequence[str] = (*_PIP, *arguments)
    return subprocess.run(command, stdout=output, stderr=output, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
