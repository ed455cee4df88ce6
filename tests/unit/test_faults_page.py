"""What `docs/faults.md` says is tested is tested."""

import ast
import re
from pathlib import Path

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "faults.md"


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`([a-z_/]+\.py)(?:::(\w+))?`", PAGE.read_text())
    assert len(named) > 50
    for path, name in named:
        where = HOME / "tests" / path
        if not where.is_file():
            where = HOME / path
        assert where.is_file(), path
        if name:
            tree = ast.parse(where.read_text())
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{path}::{name}"


def test_every_row_says_what_catches_it() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    assert all(len(row.strip("|").split("|")) == 3 for row in rows)
    assert all(len(row.strip("|").split("|")[2]) > 20 for row in rows if "#" in row)
