"""`baton plan`, from its flags to its last line."""

import json
from pathlib import Path

import pytest

from bench import plan_flags
from bench.planning import main, task_of
from bench.simulate import costs_file
from tests.unit.bench.simulate.devices import DEVICE

SLO = ("--goodput", "ttft:300", "tpot:30")


@pytest.fixture
def costs(tmp_path: Path) -> str:
    path = tmp_path / "costs.json"
    costs_file.write(path, DEVICE)
    return str(path)


def test_it_prints_a_plan_beside_colocated_and_json_last(
    costs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot, saved = tmp_path / "plan.png", tmp_path / "kept" / "plan.json"
    small = ("--random-input-len", "60", "--random-output-len", "10", "--num-prompts", "60")
    more = ("--save-result", "--result-dir", str(saved.parent), "--result-filename", saved.name)
    argv = ["--costs", costs, "--devices", "2", *SLO, *small, "--verify-requests", "30"]
    assert main([*argv, *more, "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    made = json.loads(lines[-1])
    assert json.loads(saved.read_text()) == made
    assert plot.stat().st_size > 0
    assert (made["benchmark"], made["devices"], made["requests"]) == ("plan", 2, 60)
    assert [one["name"] for one in made["searched"]] == ["colocated", "1:1"]
    assert made["best"] in ("1:1", "colocated")
    for name in ("plan", "colocated"):
        curve = made[name]["curve"]
        assert len(curve) >= 4
        assert made[name]["goodput"] in [point["rate"] for point in curve]
        assert made[name]["goodput_per_device"] == made[name]["goodput"] / 2
    best = next(one for one in made["verified"] if one["name"] == made["best"])
    assert f"best: baton serve {best['flags']}" in lines


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--goodput", "ttft:5"], "--goodput ttft:5 cannot be kept"),
        ([*SLO, "--random-input-len", "20000"], "does not fit a device's KV cache of 16000 tokens"),
        (
            [*SLO, "--random-input-len", "100000", "--num-prompts", "1000000"],  # made one by one
            "does not fit a device's KV cache of 16000 tokens",
        ),
        (["--goodput", "ttft:5", "tpot:1"], "--goodput ttft:5 tpot:1 cannot be kept"),
        (
            [*SLO, "--dataset-name", "sharegpt", "--dataset-path", "/dev/null"],
            "sharegpt is text, and needs a tokenizer",
        ),
        ([*SLO, "--costs", "/nowhere.json"], "--costs /nowhere.json: there is no such file"),
        ([*SLO, "--costs", "/proc"], "--costs /proc: it is a folder"),
        (
            [*SLO, "--dataset-name", "custom", "--dataset-path", "/nope"],
            "--dataset-path /nope: there is no such file",
        ),
        ([*SLO, "--plot", "/dev/null/x.png"], "--plot /dev/null/x.png: cannot be written"),
        (
            [*SLO, "--save-result", "--result-dir", "/dev/null"],
            "--result-dir /dev/null: it is no folder",
        ),
        (
            [*SLO, "--save-result", "--result-filename", "/dev/null/x.json"],
            "--result-filename /dev/null/x.json: cannot be written",
        ),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    costs: str, argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--costs", costs, "--devices", "2", "--num-prompts", "20", *argv]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("baton plan: error: ")
    assert told in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "--goodput (or --slo) says what a request is owed"),
        ([*SLO, "ttft:9"], "--goodput says ttft twice"),
        ([*SLO, "--workload", "timed_trace"], "timed_trace needs --dataset-path FILE"),
        ([*SLO, "--num-prompt", "3"], "unknown flag --num-prompt; did you mean --num-prompts?"),
        ([*SLO, "--device", "3"], "unknown flag --device; did you mean --devices?"),
        ([*SLO, "--attainment", "0.9"], "--attainment: 0.9: must be from 1 to 100"),
    ],
)
def test_flags_that_make_no_sense_are_one_line(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        plan_flags.parse(["--costs", "c", "--devices", "2", *argv])
    assert left.value.code == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "--costs FILE is what `baton profile --output FILE` writes at a running server"),
        (["--devices", "2", *SLO], "--costs FILE is what `baton profile --output FILE` writes"),
        (["--costs", "c", *SLO], "--devices N says how many there are"),
    ],
)
def test_what_a_plan_needs_is_one_line(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        plan_flags.parse(argv)
    assert left.value.code == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"baton plan: error: {told}")
    assert shown.count("\n") == 1


def test_aliases_and_defaults(costs: str) -> None:
    options = plan_flags.parse(
        ["--costs", costs, "--devices", "8", "--slo", "ttft:200", "--workload", "prefix_repetition"]
    )
    assert options.goodput == [("ttft", 200.0)]
    assert (options.dataset_name, options.num_prompts) == ("prefix_repetition", 2000)
    task = task_of(options)
    assert len(task.requests) == 2000
    assert task.requests[-1].at == pytest.approx(2000)  # 1 request/s
    assert sum(one.n_cached == 0 for one in task.requests) == 10
    assert {one.n_cached for one in task.requests} == {0, 256}


def test_a_trace_keeps_the_shape_of_its_times(costs: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [(0, 40, 5), (1000, 30, 4), (8000, 20, 3)]
    trace.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": n_in, "output_length": n_out}) + "\n"
            for at, n_in, n_out in rows
        )
    )
    argv = ["--costs", costs, "--devices", "2", *SLO, "--dataset-name", "timed_trace"]
    task = task_of(plan_flags.parse([*argv, "--dataset-path", str(trace)]))
    assert [one.at for one in task.requests] == pytest.approx([0, 3 / 8, 3])
    assert [len(one.prompt) for one in task.requests] == [40, 30, 20]
    assert [one.output_tokens for one in task.requests] == [5, 4, 3]
