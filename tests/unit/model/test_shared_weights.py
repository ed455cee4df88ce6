import mmap
import os
from pathlib import Path

import pytest
import torch

from common.errors import SetupError
from common.kernels.matrix import Matrix, plain
from common.model.packing import Packed, place
from common.model.rendezvous import Rendezvous
from common.model.shared_weights import SharedWeights, private_weights

LAYOUT = (Packed("a", (3, 5), (("a", 3),)), Packed("b", (2,), (("b", 2),)))
PLACED, N_BYTES = place(LAYOUT, torch.float32)


def fill(tensors: dict[str, Matrix]) -> None:
    for i, tensor in enumerate(tensors.values()):
        plain(tensor).copy_(torch.arange(plain(tensor).numel()).view(plain(tensor).shape) + 100 * i)


def refuse_to_fill(tensors: dict[str, Matrix]) -> None:
    raise AssertionError(f"filled twice: {list(tensors)}")


def ignore(process_id: int) -> None:
    del process_id


def shared(run_dir: Path, key: str = "k") -> SharedWeights:
    return SharedWeights(run_dir, key, PLACED, N_BYTES, torch.float32)


def check_values(tensors: dict[str, Matrix]) -> None:
    assert torch.equal(plain(tensors["a"]), torch.arange(15.0).view(3, 5))
    assert torch.equal(plain(tensors["b"]), torch.tensor([100.0, 101.0]))
    assert all(plain(t).data_ptr() % 64 == 0 for t in tensors.values())


def test_private_weights_are_filled_in_place() -> None:
    check_values(private_weights(PLACED, N_BYTES, torch.float32, fill))


def test_the_second_opener_sees_what_the_first_filled(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first, second = shared(run_dir), shared(run_dir)
    mine = first.open(fill, ignore)
    yours = second.open(refuse_to_fill, ignore)
    check_values(mine)
    check_values(yours)
    plain(mine["a"]).zero_()  # a bug would stay with who has it
    check_values(yours)
    first.close()
    third = shared(run_dir)
    ours = third.open(refuse_to_fill, ignore)
    second.close()
    third.close()
    check_values(ours)  # closing ends the handing on, not the mapping


def test_nobody_can_change_or_resize_the_copy(tmp_path: Path) -> None:
    weights = shared(tmp_path / "run")
    weights.open(fill, ignore)
    fd = Rendezvous(tmp_path / "run", "weights-k").obtain(lambda: -1, ignore)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 5000)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 1 << 20)
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096)  # shared and writable
    os.close(fd)
    weights.close()


def test_what_was_not_expected_is_not_mapped(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    first = shared(run_dir)
    first.open(fill, ignore)
    other_dtype = SharedWeights(run_dir, "k", PLACED, N_BYTES, torch.int32)
    with pytest.raises(SetupError, match=r"not those expected .*header equal: False"):
        other_dtype.open(refuse_to_fill, ignore)
    other_dtype.close()
    first.close()


def test_a_filler_that_fails_leaves_the_place_to_the_next(tmp_path: Path) -> None:
    def fail(tensors: dict[str, Matrix]) -> None:
        raise SetupError(f"truncated after {len(tensors)} tensors")

    failing, next_one = shared(tmp_path / "run"), shared(tmp_path / "run")
    with pytest.raises(SetupError, match="truncated"):
        failing.open(fail, ignore)
    failing.close()
    check_values(next_one.open(fill, ignore))
    next_one.close()


def test_a_filler_that_keeps_a_tensor_is_caught(tmp_path: Path) -> None:
    kept: list[Matrix] = []
    weights = shared(tmp_path / "run")
    with pytest.raises(OSError, match="busy"):
        weights.open(lambda tensors: kept.extend(tensors.values()), ignore)
    weights.close()


def test_too_little_memory_is_said_before_any_is_taken(tmp_path: Path) -> None:
    placed, n_bytes = place((Packed("a", (1 << 60,), (("a", 1 << 60),)),), torch.float32)
    weights = SharedWeights(tmp_path / "run", "k", placed, n_bytes, torch.float32)
    with pytest.raises(SetupError, match=r"take \d+ bytes of memory and \d+ are available"):
        weights.open(refuse_to_fill, ignore)
    weights.close()
    with pytest.raises(SetupError, match="are available"):
        private_weights(placed, n_bytes, torch.float32, refuse_to_fill)
