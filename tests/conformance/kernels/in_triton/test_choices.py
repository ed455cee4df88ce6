"""What chooses kernels, tiles and splits, and cuts a pass into them; no kernel runs."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from common.kernels.attention_plan import Sequences
from common.kernels.triton import choice
from common.kernels.triton.configs import (
    EXACT_SPLIT,
    decode_items,
    decode_split,
    decode_tile,
    prefill_tile,
)
from common.kernels.triton.rows import DeviceRows

CHIPS, HEAD_DIMS = (75, 80, 90, 100, 120), (2, 64, 80, 128, 256)
PAIRS, REPS = (1, 64, 65, 256, 257, 5000), (1, 3, 4, 7, 8, 64)


def test_a_pass_is_cut_into_single_rows_and_tiles_with_most_keys_first() -> None:
    sequences = Sequences(
        start_B1=np.array([0, 1, 6, 7, 10], np.int32),
        len_B=np.array([9, 5, 1, 300], np.int32),
        tables_BM=np.zeros((4, 20), np.int32),
    )
    rows = DeviceRows.of(sequences, 2, torch.device("cpu"))
    assert rows.single_I.tolist() == [0, 2]
    assert rows.longest_keys == 9
    assert rows.tile_X2.tolist() == [[3, 2], [3, 0], [1, 4], [1, 2], [1, 0]]


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_float32_has_one_tile_and_split_on_every_chip_and_load(head_dim: int) -> None:
    ways = product((decode_tile, partial(decode_tile, fp8=True), prefill_tile), CHIPS)
    assert len({tile_of(torch.float32, chip, head_dim) for tile_of, chip in ways}) == 1
    loads = product(PAIRS, REPS, (False, True))
    splits = {decode_split(torch.float32, pairs, rep, fp8=fp8) for pairs, rep, fp8 in loads}
    assert splits == {EXACT_SPLIT}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_splits_are_whole_blocks_of_keys(dtype: torch.dtype) -> None:
    for chip, head_dim, fp8 in product(CHIPS, HEAD_DIMS, (False, True)):
        keys = decode_tile(dtype, chip, head_dim, fp8=fp8).keys
        loads = product(PAIRS, REPS)
        assert not any(decode_split(dtype, *load, fp8=fp8) % keys for load in loads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n_kv_heads", [1, 3, 8, 64])
def test_some_numbers_of_sequences_have_all_splits(dtype: torch.dtype, n_kv_heads: int) -> None:
    for most in (1, 8, 300):
        some = decode_items(dtype, n_kv_heads, most)
        assert all(1 <= n <= most for n in some)
        splits = [decode_split(dtype, n * n_kv_heads, 4) for n in some]
        assert set(splits) == {decode_split(dtype, n * n_kv_heads, 4) for n in range(1, most + 1)}
        assert len(some) == 1 or dtype is not torch.float32


def test_kernels_that_are_compiled_are_not_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET"):
        choice.interpret(wanted=True)
    assert not choice.computes(torch.zeros(1))
