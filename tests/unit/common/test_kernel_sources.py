import shutil
from pathlib import Path

from common.kernels.cpu.sources import HERE, digest


def test_any_change_of_the_sources_is_another_digest(tmp_path: Path) -> None:
    directory = tmp_path / "cpu"
    shutil.copytree(HERE, directory)
    same = digest(directory)
    assert same == digest()
    (directory / "native.py").write_text("")
    assert digest(directory) == same
    header = directory / "matrix.h"
    header.write_text(header.read_text() + " ")
    changed = digest(directory)
    header.rename(directory / "matrix2.h")
    assert len({same, changed, digest(directory)}) == 3
