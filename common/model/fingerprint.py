"""A short name for a model's exact content, so that workers can refuse to mix two models' pages.

It must stay fast for files of hundreds of gigabytes: it reads the whole description of a model
(configuration, tensor tables) but only samples of its weights.
"""

import hashlib
from pathlib import Path

import msgspec

from common.errors import SetupError
from common.model.gguf_file import GgufFile
from common.model.hf_files import read_file, weight_files

_END_BYTES = 1 << 20
_N_SAMPLES = 64  # fine-tunes often leave a file's ends, and its size, as they were
_SAMPLE_BYTES = 1 << 14


def fingerprint(model_path: Path) -> str:
    """32 hex digits over the description, and each weight file's name, size and samples.

    `model_path` is a `.gguf` file or a Hugging Face directory, whose own name does not count.
    Raises `SetupError` where a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    if model_path.is_dir():
        _add(digest, _canonical_json(model_path / "config.json"))
        files = weight_files(model_path)
    else:
        _add(digest, GgufFile(model_path).header())
        files = [model_path]
    for path in files:
        _add(digest, path.name.encode())
        _add_samples(digest, path)
    return digest.hexdigest()


def file_identity(model_path: Path) -> str:
    """Changes whenever a weight file on this host is replaced, even by one of equal fingerprint."""
    files = weight_files(model_path) if model_path.is_dir() else [model_path]
    stats = [path.stat() for path in files]
    return repr([(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats])


def _canonical_json(path: Path) -> bytes:
    try:
        return msgspec.json.encode(msgspec.json.decode(read_file(path)), order="sorted")
    except msgspec.MsgspecError as error:
        raise SetupError(f"{path}: {error}") from error


def _add(digest: "hashlib.blake2b", data: bytes) -> None:
    """Length first, so that no two lists of fields can give the same stream."""
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def _add_samples(digest: "hashlib.blake2b", path: Path) -> None:
    try:
        with path.open("rb") as file:
            n_bytes = file.seek(0, 2)
            _add(digest, n_bytes.to_bytes(8, "little"))
            stride = n_bytes // (_N_SAMPLES + 1)
            samples = [(i * stride, _SAMPLE_BYTES) for i in range(1, _N_SAMPLES + 1)]
            last = max(0, n_bytes - _END_BYTES)
            for offset, size in ((0, _END_BYTES), *samples, (last, _END_BYTES)):
                file.seek(offset)
                _add(digest, file.read(size))
    except OSError as error:
        raise SetupError(f"{path}: {error.strerror}") from error
