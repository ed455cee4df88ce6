"""Flags and values as vLLM and SGLang spell them: taken, or answered."""

from pathlib import Path

import pytest

from common.config import ServeConfig
from common.errors import SetupError
from launch.other_servers import ANSWERS, ANYWAY, SWITCHES, VALUES
from launch.settings import OPTIONS, load_check, load_serve
from tests.unit.launch.test_settings import refusal, serve


@pytest.mark.parametrize(
    ("flag", "remark"),
    [
        (
            "--tensor-parallel-size",
            ": not supported yet; more workers (--prefill N, --decode M) are replicas",
        ),
        (
            "--swap_space=4",
            ": use --decode.kv-host-memory-bytes NGiB (a number alone would be bytes)",
        ),
        ("--no-enable-chunked-prefill", ": not supported: it is always so"),
        ("--generation-config=vllm", ": leave it out: the model's generation_config.json is read"),
        ("--return-tokens-as-token-ids", f": {ANSWERS['--return-tokens-as-token-ids']}"),
        ("--nnodes=2", f": {ANSWERS['--nnodes']}"),
        ("--trust-remote-code", ": not supported: no code of a model's repository is run"),
        ("--root-path", ": not supported yet"),
        ("-tp=2", f": {ANSWERS['-tp']}"),
        (
            "--kv-transfer-config.kv_role=kv_both",
            ": leave it out: one server has both pools; pages go by --transport",
        ),
        ("--prefill.tensor-parallel-size", f": {ANSWERS['--tp']}"),
        ("--hf-token=x", ": use the variable HF_TOKEN"),
        ("--nothing-of-the-kind", ""),
    ],
)
def test_a_flag_of_another_server_is_answered_and_nothing_is_guessed(
    flag: str, remark: str
) -> None:
    name = flag.partition("=")[0].replace("_", "-")
    assert refusal("some/model", flag) == f"unknown flag {name}{remark}"


def heard(*argv: str) -> tuple[ServeConfig, list[str]]:
    remarks: list[str] = []
    return load_serve(argv, {}, remarks.append), remarks


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ("--enable-auto-tool-choice", "--enable-auto-tool-choice is not needed: it is always so"),
        ("--enable_chunked_prefill", "--enable-chunked-prefill is not needed: it is always so"),
        ("--enable-metrics true", "--enable-metrics true is not needed: it is always so"),
        ("--enforce-eager=False", f"--no-enforce-eager is {ANSWERS['--enforce-eager']}"),
        ("--stream-interval 4", "--stream-interval 4 is not needed: each token is told at once"),
        ("--stream-interval=4", "--stream-interval 4 is not needed: each token is told at once"),
        ("-O3", f"-O3 is {ANSWERS['-O']}"),
        ("-O 3", f"-O 3 is {ANSWERS['-O']}"),
        ("-O.level=3", f"-O.level 3 is {ANSWERS['-O']}"),
        ('-cc {"mode":3}', f'-cc {{"mode":3}} is {ANSWERS["-cc"]}'),
        (
            "--cudagraph-capture-sizes 1 2 4",
            f"--cudagraph-capture-sizes 1 2 4 is {ANSWERS['-O']}",
        ),
        ("--tensor-parallel-size 1", "--tensor-parallel-size 1 is not needed: it is so anyway"),
        ("--generation-config auto", "--generation-config auto is not needed: it is so anyway"),
    ],
)
def test_a_flag_that_is_not_needed_is_taken_with_a_warning_wherever_it_stands(
    argv: str, told: str
) -> None:
    given = argv.split()
    for argv_with_model in (
        ["some/model", *given, "--port", "1"],
        [*given, "some/model", "--port", "1"],
        ["--port", "1", *given, "--model", "some/model"],
    ):
        config, remarks = heard(*argv_with_model)
        assert (config.model, config.port, remarks) == ("some/model", 1, [told])


def test_what_follows_a_flag_that_is_not_needed_is_no_value_of_the_one_before() -> None:
    config, _ = heard("--api-key", "a", "b", "--enforce-eager", "--model", "m")
    assert (config.api_key, config.model) == (("a", "b"), "m")
    assert refusal("m", "--enforce-eager", "n").startswith("unexpected argument 'n'")
    assert refusal("m", "--enable-chunked-prefill", "False").startswith(
        "unknown flag --no-enable-chunked-prefill: not supported"
    )


def test_all_faults_of_a_command_line_are_told_at_once() -> None:
    argv = [
        *("m", "--swap-space", "4", "--enforce-eager", "--prot", "1", "--port", "x"),
        *("--tensor-parallel-size", "2", "-tp", "2", "-tp", "2", "--quantization", "awq"),
    ]
    remarks: list[str] = []
    for load in (load_serve, load_check):
        with pytest.raises(SetupError) as caught:
            load(argv, {}, remarks.append)
        assert str(caught.value).splitlines() == [
            f"unknown flag --swap-space: {ANSWERS['--swap-space']}",
            "unknown flag --prot; did you mean --port?",
            f"unknown flag --tensor-parallel-size: {ANSWERS['-tp']}",
            f"unknown flag -tp: {ANSWERS['-tp']}",
            "--port x: must be an integer from 0 to 65535",
            "--quantization awq: must be one of gguf, int8, none; checkpoints quantised so are not "
            "read; int8 makes 8 bits of all others at start",
        ]
    assert remarks == []


def test_each_flag_that_may_not_be_needed_has_an_answer() -> None:
    assert set(SWITCHES) | set(ANYWAY) <= set(ANSWERS)
    assert all(ANSWERS[flag].startswith("not needed: ") for flag in SWITCHES)
    assert not [flag for flag in ANYWAY if ANSWERS[flag].startswith("not needed")]


def test_a_model_has_one_name() -> None:
    for argv in (
        ("--served-model-name", "a", "b"),
        ("m", "--served_model_name", "a", "b"),
        ("--model", "m", "--served-model-name", "a", "b", "--port", "1"),
    ):
        assert refusal(*argv) == (
            "--served-model-name a b: a model has one name only; where b is the model, name it "
            "first, or by --model"
        )
    config = serve("m", "--served-model-name", "a", "--port", "1")
    assert (config.model, config.served_model_name) == ("m", "a")
    config = serve("--served-model-name=a", "m")
    assert (config.model, config.served_model_name) == ("m", "a")


def test_the_context_may_be_the_models_own(tmp_path: Path) -> None:
    toml = tmp_path / "baton.toml"
    toml.write_text("max_model_len = 128")
    assert serve("--config", str(toml)).max_model_len == 128
    assert serve("--config", str(toml), "--max-model-len", "auto").max_model_len is None
    assert serve(BATON_MAX_MODEL_LEN="auto").max_model_len is None
    toml.write_text('max_model_len = "auto"')
    assert serve("--config", str(toml)).max_model_len is None


def test_counts_may_be_spelt_as_vllm_takes_them(tmp_path: Path) -> None:
    config = serve("--max-model-len", "4k", "--prefill.max-num-batched-tokens", "2K")
    assert (config.max_model_len, config.prefill.max_num_batched_tokens) == (4000, 2048)
    toml = tmp_path / "baton.toml"
    toml.write_text('max_num_batched_tokens = "2K"')
    assert serve("--config", str(toml)).max_num_batched_tokens == 2048


def test_no_flag_of_ours_is_answered_as_another_servers() -> None:
    assert not {option.flag for option in OPTIONS.values()} & set(ANSWERS)


def test_a_value_of_another_server_is_answered(tmp_path: Path) -> None:
    wanted = (
        "must be one of auto, bfloat16, float16, float32, fp8, fp8_e4m3; fp8 is e4m3, as small and "
        "nearer to what it keeps"
    )
    assert refusal("--kv-cache-dtype", "fp8_e5m2") == f"--kv-cache-dtype fp8_e5m2: {wanted}"
    toml = tmp_path / "baton.toml"
    toml.write_text('kv_cache_dtype = "fp8_e5m2"')
    assert refusal("--config", str(toml)) == f"{toml}: kv_cache_dtype = 'fp8_e5m2': {wanted}"
    assert {key for key, _ in VALUES} <= set(OPTIONS)
    for value in ("auto", "fp8", "fp8_e4m3"):
        assert serve("--kv-cache-dtype", value).kv_cache_dtype == value
