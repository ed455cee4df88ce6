from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.errors import SetupError, UnsupportedModel
from common.kernels.matrix import Matrix, plain
from common.model.packing import ALIGN_BYTES, check_source, fill, packed_layout, place, views
from common.model.safetensors_weights import SafetensorsSource
from tests.unit.model.small_models import random_weights, write_safetensors


def packed(directory: Path, dtype: torch.dtype = torch.float32) -> dict[str, Matrix]:
    source = SafetensorsSource(directory)
    layout = packed_layout(source.spec)
    check_source(layout, source, tied=source.spec.tied_embeddings)
    placed, n_bytes = place(layout, dtype)
    tensors = views(memoryview(bytearray(n_bytes)), placed, dtype)
    fill(tensors, placed, source)
    return tensors


@pytest.mark.parametrize("n_shards", [1, 3])
def test_rows_are_stacked_in_order_whatever_the_shards(n_shards: int, tmp_path: Path) -> None:
    weights = random_weights(bias=True)
    write_safetensors(tmp_path, weights, n_shards=n_shards, attention_bias=True)
    tensors = packed(tmp_path)
    layer = "model.layers.1"
    for kind in ("weight", "bias"):
        qkv = [weights[f"{layer}.self_attn.{p}_proj.{kind}"] for p in "qkv"]
        assert torch.equal(plain(tensors[f"layers.1.qkv.{kind}"]), torch.cat(qkv))
    gate_up = [weights[f"{layer}.mlp.{p}_proj.weight"] for p in ("gate", "up")]
    assert torch.equal(plain(tensors["layers.1.gate_up.weight"]), torch.cat(gate_up))
    assert torch.equal(
        plain(tensors["layers.1.mlp_norm"]), weights[f"{layer}.post_attention_layernorm.weight"]
    )
    assert torch.equal(plain(tensors["lm_head"]), weights["lm_head.weight"])
    assert "layers.1.gate_up.bias" not in tensors


def test_bfloat16_rounds_once_and_every_tensor_is_aligned(tmp_path: Path) -> None:
    weights = random_weights()
    write_safetensors(tmp_path, weights)
    tensors = packed(tmp_path, torch.bfloat16)
    assert torch.equal(plain(tensors["embed"]), weights["model.embed_tokens.weight"].bfloat16())
    start = address(tensors["embed"])
    assert all((address(m) - start) % ALIGN_BYTES == 0 for m in tensors.values())


def address(matrix: Matrix) -> int:
    return (matrix if isinstance(matrix, Tensor) else matrix.blocks).data_ptr()


def test_a_fused_product_gives_each_row_the_bits_of_its_own_product(tmp_path: Path) -> None:
    weights = random_weights()
    write_safetensors(tmp_path, weights)
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(2))
    fused = torch.nn.functional.linear(x, plain(packed(tmp_path)["layers.0.gate_up.weight"]))
    gate, up = (weights[f"model.layers.0.mlp.{p}_proj.weight"] for p in ("gate", "up"))
    apart = [torch.nn.functional.linear(x, w) for w in (gate, up)]
    assert torch.equal(fused, torch.cat(apart, dim=1))


def test_a_tied_matrix_that_was_saved_twice_is_read_once(tmp_path: Path) -> None:
    write_safetensors(tmp_path, random_weights(), tie_word_embeddings=True)
    assert "lm_head" not in packed(tmp_path)


def test_old_checkpoints_keep_frequencies_that_are_not_weights(tmp_path: Path) -> None:
    inv_freq = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    write_safetensors(tmp_path, random_weights() | inv_freq)
    assert len(packed(tmp_path)) == 3 + 2 * 6


def test_tensors_that_are_missing_left_over_or_misshapen_are_named(tmp_path: Path) -> None:
    weights = random_weights()
    norm = weights.pop("model.layers.1.input_layernorm.weight")
    write_safetensors(tmp_path, weights)
    with pytest.raises(SetupError, match=r"missing: model.layers.1.input_layernorm.weight$"):
        packed(tmp_path)
    weights["model.layers.1.input_layernorm.weight"] = norm[:-1].clone()
    write_safetensors(tmp_path, weights)
    with pytest.raises(SetupError, match=r"is \(31,\) where \(32,\) is needed"):
        packed(tmp_path)
    write_safetensors(tmp_path, random_weights(bias=True))
    with pytest.raises(SetupError, match=r"without a place.*k_proj.bias.* and 4 more"):
        packed(tmp_path)


def test_files_that_are_not_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"config\.json: No such file"):
        SafetensorsSource(tmp_path)
    write_safetensors(tmp_path, random_weights())
    (tmp_path / "model.safetensors").write_bytes(b"no")
    with pytest.raises(SetupError, match="not a readable safetensors"):
        SafetensorsSource(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SetupError, match="safetensors and GGUF only"):
        SafetensorsSource(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../elsewhere"}}')
    with pytest.raises(SetupError, match="is not a file name"):
        SafetensorsSource(tmp_path)


def test_quantised_safetensors_are_refused(tmp_path: Path) -> None:
    weights = random_weights()
    weights["model.norm.weight"] = weights["model.norm.weight"].to(torch.float8_e4m3fn)
    write_safetensors(tmp_path, weights)
    with pytest.raises(UnsupportedModel, match="float8_e4m3fn: quantised weights need GGUF"):
        packed(tmp_path)
