"""What holds of every `python -m bench.NAME`, and of every command line in `bench`."""

import ast
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from bench import engine, isolation, kernels, perplexity, scarcity, steps
from bench.flag_types import Parser, model_path, positive
from bench.program import exit_status
from bench.server import NotReady
from bench.simulate import distserve, overload, reality, replay, routing
from common.errors import SetupError

HOME = Path(__file__).parents[3]
MODULES = sorted((HOME / "bench").rglob("*.py"))
ELSEWHERE = HOME / "bench" / "peer_openvino.py"  # in another Python, where nothing of ours is


def name_of(path: Path) -> str:
    return path.relative_to(HOME).with_suffix("").as_posix().replace("/", ".")


@cache
def imported(module: str) -> frozenset[str]:
    """Modules of `bench` that it names in an import anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((HOME / f"{module.replace('.', '/')}.py").read_text())):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(base), names=names):
                found |= {base, *(f"{base}.{alias.name}" for alias in names)}
            case _:
                pass
    return frozenset(found & {name_of(path) for path in MODULES})


def reached(module: str) -> Iterator[str]:
    """All that is imported with it, by whatever way."""
    known: set[str] = set()
    waiting = [module]
    while waiting:
        for name in imported(waiting.pop()) - known:
            known.add(name)
            waiting.append(name)
            yield name


PROGRAMS = [name_of(path) for path in MODULES if 'if __name__ == "__main__":' in path.read_text()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_is_not_imported_by_what_it_imports(program: str) -> None:
    """As a program it is `__main__`: whoever imports it gets its types a second time."""
    assert program not in set(reached(program))


@pytest.mark.parametrize("path", [p for p in MODULES if p != ELSEWHERE], ids=name_of)
def test_every_command_line_refuses_flags_that_are_cut_short(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(attr="ArgumentParser"), keywords=keywords):
                assert "allow_abbrev" in {keyword.arg for keyword in keywords}
            case _:
                pass


def test_a_flag_that_is_cut_short_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="p")
    parser.add_argument("--num-prompts", type=positive)
    assert parser.parse_all(["--num-prompts", "3"]).num_prompts == 3
    with pytest.raises(SystemExit) as left:
        parser.parse_all(["--num-prompt", "3"])
    assert left.value.code == 2
    told = "p: error: unknown flag --num-prompt; did you mean --num-prompts?\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("main", [engine.main, kernels.main, perplexity.main, steps.main,
                                  scarcity.main])  # fmt: skip
def test_a_model_that_is_not_there_is_one_line(
    main: Callable[[Sequence[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["nope"])
    assert left.value.code == 2
    told = capsys.readouterr()
    assert "error: model: nope: there is no such file" in told.err
    assert (told.out, told.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("main", [kernels.main, perplexity.main, steps.main, scarcity.main])
def test_a_file_that_is_no_model_is_one_line(
    main: Callable[[Sequence[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "poem.gguf"
    place.write_text("rose")
    assert exit_status(main, [str(place)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {place}: not a readable GGUF file")
    assert told.count("\n") == 1


@pytest.mark.parametrize("fault", [SetupError("too small"), NotReady("too small")])
def test_what_the_operator_must_mend_has_no_traceback(
    fault: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(_: Sequence[str]) -> int:
        raise fault

    assert exit_status(main, []) == 2
    assert capsys.readouterr().err == "error: too small\n"


@pytest.mark.parametrize(
    ("main", "argv", "told"),
    [
        (isolation.main, ["m", "--plot", "/dev/null/x.png"], "--plot /dev/null/x.png"),
        (isolation.main, ["m", "--rounds", "0"], "--rounds: 0: must be a number from 1 on"),
        (overload.main, ["--plot", "/dev/null/x.png"], "--plot /dev/null/x.png"),
        (overload.main, ["--seconds", "1", "--tpot-s", "1e-9"], "5 requests/s are too many"),
        (distserve.main, ["--out", "/dev/null"], "--out /dev/null/colocated-wins.png"),
        (routing.main, ["--trace", "/nope"], "--trace /nope: there is no such file"),
        (replay.main, ["--trace", "/nope"], "--trace /nope: there is no such file"),
        (replay.main, ["--trace", "/nope", "--capacity", "1,x"], "--capacity: x: must be a number"),
    ],
)
def test_what_cannot_be_done_is_one_line_before_the_work(
    main: Callable[[Sequence[str]], int],
    argv: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--model", "m", "--result-dir", "/dev/null"], "--result-dir /dev/null/reality.png"),
        (["--sweep", "/nope", "--costs", "a=b"], "--sweep /nope/configuration.json: there is no"),
    ],
)
def test_a_comparison_that_cannot_be_written_or_read_is_one_line(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reality.main(argv) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: {told}")
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_what_is_there_is_taken_for_a_model(tmp_path: Path) -> None:
    assert model_path(str(tmp_path)) == tmp_path
