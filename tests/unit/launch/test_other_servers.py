"""Flags and values as vLLM and SGLang spell them: taken, or answered."""

from pathlib import Path

import pytest

from launch.other_servers import ANSWERS, VALUES
from launch.settings import OPTIONS
from tests.unit.launch.test_settings import refusal, serve


@pytest.mark.parametrize(
    ("flag", "remark"),
    [
        ("--tensor-parallel-size", ": not supported yet"),
        ("--swap_space=4", ": use --kv-host-memory-bytes"),
        ("--no-enable-chunked-prefill", ": not needed: it is always so"),
        ("--trust-remote-code", ": not supported: no code of a model's repository is run"),
        ("--root-path", ": not supported yet"),
        ("-tp=2", ": not supported yet"),
        ("-O3", ": not needed: kernels are Baton's own, chosen by the machine"),
        ("-O.level=3", ": not needed: kernels are Baton's own, chosen by the machine"),
        ("--kv-transfer-config.kv_role=kv_both", ": not needed: pages travel by --transport"),
        ("--prefill.tensor-parallel-size", ": not supported yet"),
        ("--hf-token=x", ": use the variable HF_TOKEN"),
        ("--nothing-of-the-kind", ""),
    ],
)
def test_a_flag_of_another_server_is_answered_and_nothing_is_guessed(
    flag: str, remark: str
) -> None:
    name = flag.partition("=")[0].replace("_", "-")
    assert refusal("some/model", flag) == f"unknown flag {name}{remark}"


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
