"""The GGUF container, versions 2 and 3: metadata, and where each tensor's bytes lie.

Reads the header itself: the `gguf` package's reader takes seconds over a tokenizer's arrays and
trusts every length. Names no torch and knows no model, so that the gateway can read a tokenizer
with it. Block formats are the `gguf` package's.
"""

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from common.errors import SetupError

Scalar = str | int | float | bool
Value = Scalar | list[str] | list[int] | list[float] | list[bool]

_MAGIC = b"GGUF"
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


class GgufTensor(NamedTuple):
    """Where a tensor lies. `shape` is row-major: the last axis is contiguous."""

    name: str
    shape: tuple[int, ...]
    block_format: GGMLQuantizationType
    offset: int  # bytes from the file's start
    n_bytes: int


class GgufFile:
    """An open GGUF file. The bytes of tensors stay in the page cache, mapped read-only."""

    def __init__(self, path: Path) -> None:
        """Raises `SetupError` if the file is not a whole GGUF file."""
        self.path = path
        self.metadata: dict[str, Value] = {}
        self.tensors: dict[str, GgufTensor] = {}
        try:
            with path.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.header_bytes = self._read_header()
        except (OSError, ValueError, OverflowError, struct.error) as error:
            raise SetupError(f"{path}: not a readable GGUF file: {error}") from error

    def rows(self, name: str) -> NDArray[np.uint8]:
        """The tensor's encoded bytes: [rows, bytes of a row]; a view of the mapping.

        A tensor of one axis counts as one value a row.
        """
        tensor = self.tensors[name]
        n_rows = 1
        for n in tensor.shape[:-1] if len(tensor.shape) > 1 else tensor.shape:
            n_rows *= n
        flat = np.frombuffer(self._bytes, np.uint8, tensor.n_bytes, tensor.offset)
        return flat.reshape(n_rows, -1)

    def header(self) -> bytes:
        """All bytes before the first tensor: metadata and the tensors' table."""
        return self._bytes[: self.header_bytes]

    def _read_header(self) -> int:
        cursor = _Cursor(self._bytes)
        if cursor.take(4) != _MAGIC:
            raise ValueError("it does not begin with 'GGUF'")
        version, n_tensors, n_pairs = cursor.unpack("I"), cursor.unpack("Q"), cursor.unpack("Q")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not 2 or 3 (or the file is big-endian)")
        for _ in range(n_pairs):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.unpack("I"))
        entries = [cursor.tensor() for _ in range(n_tensors)]
        alignment = self.metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-cursor.at // alignment) * alignment
        for entry in entries:
            if entry.name in self.tensors:
                raise ValueError(f"tensor {entry.name} is listed twice")
            placed = entry._replace(offset=start + entry.offset)
            if placed.offset + placed.n_bytes > len(self._bytes):
                raise ValueError(f"cut short: tensor {entry.name} ends beyond {len(self._bytes)} B")
            self.tensors[entry.name] = placed
        return start


class _Cursor:
    """Reads little-endian values one after the other; never beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.at = 0

    def take(self, n_bytes: int) -> bytes:
        end = self.at + n_bytes
        if end > len(self.data):
            raise ValueError(f"cut short: a field ends beyond {len(self.data)} B")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def unpack(self, code: str) -> int:
        """One unsigned integer."""
        return int(struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0])

    def string(self) -> str:
        return self.take(self.unpack("Q")).decode()

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.unpack("I"), self.unpack("Q"))
        return self._scalars(kind, 1)[0]

    def _array(self, kind: int, n: int) -> Value:
        if kind == _STRING:
            return [self.string() for _ in range(n)]
        return self._scalars(kind, n)

    def _scalars(self, kind: int, n: int) -> list[int] | list[float] | list[bool]:
        code = _SCALARS.get(kind)
        if code is None:
            raise ValueError(f"a value of type {kind} is not known here")
        return list(struct.unpack(f"<{n}{code}", self.take(n * struct.calcsize("<" + code))))

    def tensor(self) -> GgufTensor:
        """An entry of the table; its offset is relative to the first tensor's byte."""
        name = self.string()
        n_dims = self.unpack("I")
        if not 1 <= n_dims <= 4:
            raise ValueError(f"tensor {name} has {n_dims} axes")
        shape = tuple(reversed([self.unpack("Q") for _ in range(n_dims)]))
        block_format = GGMLQuantizationType(self.unpack("I"))
        offset = self.unpack("Q")
        block_values, block_bytes = GGML_QUANT_SIZES[block_format]
        if shape[-1] % block_values or 0 in shape:
            raise ValueError(
                f"tensor {name} of shape {shape} is not whole {block_format.name} blocks"
            )
        n_values = 1
        for n in shape:
            n_values *= n
        return GgufTensor(name, shape, block_format, offset, n_values // block_values * block_bytes)
