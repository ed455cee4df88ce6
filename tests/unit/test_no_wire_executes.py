"""Nothing that comes from outside can name code: no module of ours even imports what could."""

import ast
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
PACKAGES = ("common", "prefill", "decode", "transfer", "launch")
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
METHODS = {"recv_pyobj", "send_pyobj", "recv_serialized", "unsafe_load", "load_pickle"}
OPTIONS = {"allow_pickle", "trust_remote_code"}  # that only False may be said of


def sources() -> list[Path]:
    return sorted(path for package in PACKAGES for path in (HOME / package).rglob("*.py"))


def faults(tree: ast.AST) -> list[str]:
    nodes = list(ast.walk(tree))
    return [what for node in nodes for what in (*imported(node), *used(node))]


def imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names]
        case ast.ImportFrom(module=str(module)):
            modules = [module]
        case _:
            return []
    return [module for module in modules if module.partition(".")[0] in MODULES]


def used(node: ast.AST) -> list[str]:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            return [name]
        case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
            return ["torch.load"]
        case ast.Attribute(attr=name) if name in METHODS:
            return [name]
        case ast.keyword(arg=str(name), value=value) if name in OPTIONS:
            off = isinstance(value, ast.Constant) and value.value is False
            return [] if off else [name]
        case _:
            return []


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(HOME)))
def test_no_wire_executes(path: Path) -> None:
    assert faults(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(path)",
        "socket.recv_pyobj()",
        "eval(text)",
        "np.load(path, allow_pickle=True)",
        "load(path, trust_remote_code=wanted)",
    ],
)
def test_what_would_execute_is_found(text: str) -> None:
    assert len(faults(ast.parse(text))) == 1
