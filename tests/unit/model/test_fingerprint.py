import os
import shutil
from pathlib import Path

import pytest

from common.errors import SetupError
from common.model.fingerprint import file_identity, fingerprint
from tests.unit.model.small_models import random_weights, write_gguf, write_safetensors


def test_a_copy_elsewhere_has_the_same_fingerprint_and_another_identity(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write_safetensors(here, random_weights(), n_shards=2)
    shutil.copytree(here, there)
    assert fingerprint(here) == fingerprint(there)
    assert len(fingerprint(here)) == 32
    assert file_identity(here) != file_identity(there)


def test_the_order_and_spacing_of_the_configuration_do_not_count_but_its_values_do(
    tmp_path: Path,
) -> None:
    write_safetensors(tmp_path, random_weights())
    first = fingerprint(tmp_path)
    config = tmp_path / "config.json"
    text = config.read_text()
    pairs = text.strip("{}").split(", ")
    config.write_text("{\n" + ",\n  ".join(reversed(pairs)) + "\n}")
    assert fingerprint(tmp_path) == first
    config.write_text(
        text.replace('"max_position_embeddings": 128', '"max_position_embeddings": 64')
    )
    assert fingerprint(tmp_path) != first


@pytest.mark.parametrize("where", [0.0, 0.4, 0.999])  # start, middle and end of a large file
def test_a_change_of_size_or_of_sampled_bytes_shows(where: float, tmp_path: Path) -> None:
    write_safetensors(tmp_path, random_weights())
    path = tmp_path / "model.safetensors"
    n_bytes = 64 << 20
    os.truncate(path, n_bytes)  # sparse: costs nothing
    first, seen = fingerprint(tmp_path), set()
    with path.open("r+b") as file:
        file.seek(int(where * n_bytes))
        file.write(b"\x01" * (1 << 20))  # one changed matrix
    seen.add(fingerprint(tmp_path))
    os.truncate(path, n_bytes + 1)
    seen.add(fingerprint(tmp_path))
    assert len(seen - {first}) == 2


def test_a_gguf_files_metadata_counts(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, random_weights(), extra={"rope.freq_base": 1e4})
    first = fingerprint(path)
    assert fingerprint(path) == first
    write_gguf(path, random_weights(), extra={"rope.freq_base": 2e4})
    assert fingerprint(path) != first


def test_a_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="gone"):
        fingerprint(tmp_path / "gone")
