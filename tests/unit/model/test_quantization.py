from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Stored
from gguf import GGUFReader
from torch import Tensor

from common.errors import SetupError
from common.kernels.cpu import native
from common.kernels.formats import WeightFormat
from common.kernels.matrix import Matrix, PackedMatrix, plain
from common.model.gguf_weights import GgufSource
from common.model.load import load_model, weights_bytes
from common.model.packing import packed_layout
from common.model.quantization import choose_formats
from common.values import Quantization
from tests.unit.model.small_models import random_weights, write_gguf, write_safetensors

MAX_TOKENS = 64


def matrices(path: Path, dtype: torch.dtype, quantization: Quantization) -> dict[str, Matrix]:
    model = load_model(path, dtype, None, MAX_TOKENS, quantization=quantization).model
    block = model.blocks[1]
    return {
        "embed": model.embed_VH,
        "lm_head": model.lm_head_VH,
        "qkv": block.qkv.weight_OI,
        "o": block.o.weight_OI,
        "gate_up": block.gate_up.weight_OI,
        "down": block.down.weight_OI,
    }


def formats_of(some: dict[str, Matrix]) -> set[WeightFormat]:
    return {m.format for m in some.values() if isinstance(m, PackedMatrix)}


@pytest.fixture(params=["C++", "torch"])
def either_path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(native, "_missing", "not wanted")
    elif not native.available():
        pytest.skip(native.why_not())
    return request.param


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stored", [Stored.Q4_1, Stored.Q8_0])
def test_a_gguf_files_groups_are_kept(
    either_path: str, stored: Stored, dtype: torch.dtype, tmp_path: Path
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, random_weights(), stored)
    kept, wanted = matrices(path, dtype, "gguf"), matrices(path, dtype, "none")
    for name, matrix in kept.items():
        assert torch.equal(plain(matrix), plain(wanted[name])), name
    if either_path == "C++":
        assert formats_of(kept) == {WeightFormat[stored.name]}
        assert weights_bytes(path, dtype, "gguf") < weights_bytes(path, dtype, "none") / 1.6


@pytest.mark.usefixtures("either_path")
def test_int8_encodes_whatever_the_file_holds(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "hf", random_weights())
    write_gguf(tmp_path / "m.gguf", random_weights(), Stored.F32)
    kept = matrices(tmp_path / "hf", torch.float32, "int8")
    wanted = matrices(tmp_path / "hf", torch.float32, "none")
    for name, matrix in matrices(tmp_path / "m.gguf", torch.float32, "int8").items():
        exact, encoded = plain(wanted[name]), plain(matrix)
        assert torch.equal(encoded, plain(kept[name])), name
        assert not torch.equal(encoded, exact)
        step = exact.abs().amax(-1, keepdim=True) / 127
        assert ((encoded - exact).abs() <= step * 0.5001).all(), name


def mixed(tmp_path: Path, **formats: Stored) -> GgufSource:
    """A Q4_1 file in whose table some tensors, by a part of their names, have other formats."""
    path = tmp_path / "m.gguf"
    write_gguf(path, random_weights(), Stored.Q4_1)
    source = GgufSource(path)
    for name, tensor in source.file.tensors.items():
        for part, stored in formats.items():
            if part in name:
                source.file.tensors[name] = tensor._replace(block_format=stored)
    return source


def chosen(source: GgufSource) -> dict[str, WeightFormat]:
    return dict(choose_formats(packed_layout(source.spec), source, "gguf"))


def test_a_matrix_is_kept_if_its_parts_are_of_one_format(tmp_path: Path) -> None:
    formats = chosen(mixed(tmp_path, attn_v=Stored.Q8_0, ffn_down=Stored.F16))
    assert formats["layers.0.o.weight"] is WeightFormat.Q4_1
    assert formats["layers.0.gate_up.weight"] is WeightFormat.Q4_1
    assert "layers.0.qkv.weight" not in formats
    assert "layers.0.down.weight" not in formats
    assert "layers.0.attn_norm" not in formats


def test_other_quantisations_are_refused_with_the_flag_and_a_remedy(tmp_path: Path) -> None:
    says = r"--quantization gguf keeps Q4_1 and Q8_0.*down_proj.* is Q4_K: use --quantization int8"
    with pytest.raises(SetupError, match=says):
        chosen(mixed(tmp_path, ffn_down=Stored.Q4_K))


def test_files_with_nothing_to_keep_are_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "hf", random_weights())
    write_gguf(tmp_path / "m.gguf", random_weights(), Stored.F16)
    for path, found in ((tmp_path / "hf", "F32"), (tmp_path / "m.gguf", "F16")):
        with pytest.raises(SetupError, match=rf"has none \(its tensors are {found}\): use "):
            load_model(path, torch.bfloat16, None, MAX_TOKENS, quantization="gguf")


@pytest.mark.skipif(not native.available(), reason=native.why_not())
def test_codes_that_kernels_cannot_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, random_weights(), Stored.Q8_0)
    (tensor,) = (t for t in GGUFReader(path).tensors if t.name == "blk.1.ffn_up.weight")
    data = bytearray(path.read_bytes())
    data[int(tensor.data_offset) + 34 + 5] = 128
    path.write_bytes(data)
    with pytest.raises(SetupError, match=r"1\.mlp\.up_proj.* has codes of -128"):
        load_model(path, torch.bfloat16, None, MAX_TOKENS, quantization="gguf")


@pytest.mark.parametrize("quantization", ["int8", "gguf"])
def test_workers_that_share_a_directory_do_not_mix_formats_up(
    quantization: Quantization, tmp_path: Path
) -> None:
    path, run_dir = tmp_path / "m.gguf", tmp_path / "run"
    write_gguf(path, random_weights(), Stored.Q4_1)
    models = [
        load_model(path, torch.bfloat16, run_dir, MAX_TOKENS, quantization=kept)
        for kept in ("none", quantization, quantization)
    ]
    assert len({model.fingerprint for model in models}) == 1
    own = matrices(path, torch.bfloat16, quantization)["down"]
    downs: list[Tensor] = [plain(m.model.blocks[1].down.weight_OI) for m in models]
    assert torch.equal(downs[1], plain(own))
    assert torch.equal(downs[2], plain(own))
    assert torch.equal(downs[0], plain(matrices(path, torch.bfloat16, "none")["down"]))
    for model in models:
        model.close()
