import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import quantize

from common.errors import SetupError
from common.model.gguf_file import GgufFile

RNG = np.random.default_rng(0)
MATRIX = RNG.standard_normal((3, 64)).astype(np.float32)
VECTOR = RNG.standard_normal(5).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_string("name", "Grüße 你好")
    writer.add_uint32("u32", 2**32 - 1)
    writer.add_int8("i8", -3)
    writer.add_float32("f32", 0.1)
    writer.add_float64("f64", 0.1)
    writer.add_uint64("u64", 2**63)
    writer.add_bool("yes", val=True)
    writer.add_array("words", ["a", "", "ħ"])
    writer.add_array("ids", [3, 1, 2])
    writer.add_array("scores", [0.5, -1.5])
    q8 = quantize(MATRIX, GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8", q8, raw_dtype=GGMLQuantizationType.Q8_0)
    writer.add_tensor("vector", VECTOR)
    writer.add_tensor("half", MATRIX.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_it_reads_what_the_packages_own_reader_reads(path: Path) -> None:
    ours, theirs = GgufFile(path), GGUFReader(path)
    fields = {name: f.contents() for name, f in theirs.fields.items() if "GGUF." not in name}
    assert ours.metadata == fields
    assert ours.header_bytes == theirs.data_offset
    assert ours.header() == path.read_bytes()[: theirs.data_offset]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert mine.block_format == tensor.tensor_type
        assert ours.rows(tensor.name).tobytes() == tensor.data.tobytes()


def test_rows_are_the_first_axis_and_a_vector_has_one_value_a_row(path: Path) -> None:
    file = GgufFile(path)
    assert file.rows("q8").shape == (3, 2 * 34)
    assert file.rows("half").shape == (3, 128)
    assert file.rows("vector").shape == (5, 4)
    assert file.rows("vector").view(np.float32).ravel().tolist() == VECTOR.tolist()


def test_every_cut_of_the_file_is_refused(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    header_bytes = GgufFile(path).header_bytes
    for n_bytes in [*range(0, header_bytes, 7), header_bytes, len(whole) - 64]:
        cut.write_bytes(whole[:n_bytes])
        with pytest.raises(SetupError, match="not a readable GGUF file"):
            GgufFile(cut)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        (b"GGML" + bytes(60), "does not begin"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**62, 0), "cut short"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 99), "type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 4, 2**60), "cut short"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 1, 0, 1, b"t", 9), "9 axes"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 33, 8, 0), "not whole Q8_0"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 2**40, 0, 0), "ends beyond"),
        (b"GGUF" + struct.pack("<IQQQ1sIQIQ", 3, 1, 0, 1, b"t", 1, 32, 999, 0), "999"),
    ],
)
def test_a_lying_header_is_refused(head: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(head)
    with pytest.raises(SetupError, match=says):
        GgufFile(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"gone\.gguf"):
        GgufFile(tmp_path / "gone.gguf")
