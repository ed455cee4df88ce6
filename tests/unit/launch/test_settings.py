import re
from pathlib import Path

import pytest

from common.config import ServeConfig
from common.errors import SetupError
from common.ids import Role
from launch.settings import OPTIONS, cache_dir, load_fetch, load_serve, load_worker


def serve(*argv: str, **environ: str) -> ServeConfig:
    return load_serve(argv, environ)


def refusal(*argv: str, **environ: str) -> str:
    with pytest.raises(SetupError) as caught:
        load_serve(argv, environ)
    text = str(caught.value)
    assert "\n" not in text
    return text


KEYS = "keys of printable ASCII without spaces, separated by commas"
DEVICES = "must be auto or cpu, or GPUs such as cuda:0,cuda:1"


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "conf.toml"


def test_nothing_given_is_the_defaults() -> None:
    assert serve() == ServeConfig()


def test_flag_over_variable_over_file_over_default(toml: Path) -> None:
    toml.write_text("port = 1\nseed = 1\nmax_logprobs = 1\n")
    config = serve(
        *("--config", str(toml), "--port", "3"), BATON_PORT="2", BATON_SEED="2", PATH="ignored"
    )
    assert (config.port, config.seed, config.max_logprobs) == (3, 2, 1)
    assert config.max_waiting_requests == 1024


def test_the_file_may_be_named_by_a_variable(toml: Path) -> None:
    toml.write_text("port = 1")
    assert serve(BATON_CONFIG=str(toml)).port == 1


def test_sections_in_every_source(toml: Path) -> None:
    toml.write_text("[prefill]\nworkers = 2\nchunk_tokens = 32\n[decode]\nmax_num_seqs = 5\n")
    config = serve(
        *("--config", str(toml), "--decode.cpus", "0-1"), BATON_PREFILL__CHUNK_TOKENS="64"
    )
    assert (config.prefill.workers, config.prefill.chunk_tokens) == (2, 64)
    assert (config.decode.cpus, config.decode.max_num_seqs) == ("0-1", 5)


@pytest.mark.parametrize("argv", [["--prefill", "2"], ["--prefill.workers", "2"], ["--prefill=2"]])
def test_the_pools_sizes_have_short_names(argv: list[str]) -> None:
    assert serve(*argv).prefill.workers == 2
    assert serve(BATON_DECODE="3").decode.workers == 3


def test_underscores_are_accepted_in_flags_and_left_alone_in_values() -> None:
    config = serve("--max_model_len", "128", "--served_model_name=my_model")
    assert (config.max_model_len, config.served_model_name) == (128, "my_model")


def test_switches() -> None:
    assert serve("--enable-prefix-caching").enable_prefix_caching is True
    assert serve("--no-enable-prefix-caching").enable_prefix_caching is False
    assert serve("--decode.no-enable-prefix-caching").decode.enable_prefix_caching is False
    assert serve(BATON_ENABLE_PREFIX_CACHING="false").enable_prefix_caching is False


def test_bytes_in_every_source(toml: Path) -> None:
    toml.write_text('kv_cache_memory_bytes = "1MiB"\n[decode]\nkv_cache_memory_bytes = 4096\n')
    config = serve("--config", str(toml), BATON_PREFILL__KV_CACHE_MEMORY_BYTES="2K")
    assert config.kv_cache_memory_bytes == 2**20
    assert config.decode.kv_cache_memory_bytes == 4096
    assert config.prefill.kv_cache_memory_bytes == 2048
    assert serve("--kv-host-memory-bytes", "1G").kv_host_memory_bytes == 2**30
    assert serve("--kv-host-memory-bytes", "0").kv_host_memory_bytes == 0


@pytest.mark.parametrize(
    "argv",
    [
        ["some/model", "--api-key", "a", "b"],
        ["--api-key", "a", "b", "--model", "some/model"],
        ["--api-key", "a", "--api-key", "b"],
        ["--api_key=a,b"],
        ["--api-key", '["a", "b"]'],
    ],
)
def test_several_values_of_a_flag(argv: list[str]) -> None:
    assert serve(*argv).api_key == ("a", "b")


def test_lists_in_other_sources(toml: Path) -> None:
    assert serve(BATON_API_KEY="a, b").api_key == ("a", "b")
    assert serve(VLLM_API_KEY="a").api_key == ("a",)
    assert serve(VLLM_API_KEY="a", BATON_API_KEY="b").api_key == ("b",)
    toml.write_text('api_key = ["a", "b"]\nallowed_origins = "http://x,http://y"')
    config = serve("--config", str(toml))
    assert config.api_key == ("a", "b")
    assert config.allowed_origins == ("http://x", "http://y")
    assert config.allowed_methods == ("*",)


def test_a_list_does_not_swallow_the_model() -> None:
    assert refusal("--api-key", "a", "some/model") == (
        "--api-key: the last of its values may be meant as the model; separate them by commas, or "
        "name the model first"
    )


def test_a_refusal_does_not_show_a_key() -> None:
    told = f"must be {KEYS}"
    assert refusal("--api-key", "my key") == f"--api-key: {told}"
    assert refusal(BATON_API_KEY="my key") == f"BATON_API_KEY: {told}"
    assert refusal(BATON_API_KEY="") == f"BATON_API_KEY: {told}"
    assert refusal(VLLM_API_KEY="my key") == f"VLLM_API_KEY: {told}"


def test_slos_are_milliseconds_and_the_gateways_alone(toml: Path) -> None:
    toml.write_text("slo_tpot = 50")
    config = serve("--config", str(toml), "--slo-ttft", "1.5")
    assert (config.slo_ttft, config.slo_tpot) == (1.5, 50.0)
    assert (serve().slo_ttft, serve().slo_tpot) == (None, None)
    with pytest.raises(SetupError, match="unknown flag --slo-ttft"):
        load_worker(Role.PREFILL, ["--join", "a:1", "--slo-ttft", "1"], {})


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-model-length", "5"], "unknown flag --max-model-length; did you mean {}?"),
        (["--max_model_length=5"], "unknown flag --max-model-length; did you mean {}?"),
    ],
)
def test_an_unknown_flag_names_the_nearest(argv: list[str], message: str) -> None:
    assert refusal(*argv) == message.format("--max-model-len")


def test_an_abbreviated_flag_is_unknown() -> None:
    assert refusal("--max-model", "5") == "unknown flag --max-model; did you mean --max-model-len?"


def test_other_faults_of_a_command_line() -> None:
    assert refusal("a.gguf", "b.gguf") == "unexpected argument 'b.gguf': every setting has a flag"
    with pytest.raises(SetupError, match=r"^unexpected argument 'a\.gguf'"):
        load_fetch(["a.gguf"], {})
    assert refusal("--port") == "--port: expected one argument"
    assert refusal("--enable-prefix-caching=true") == (
        "--enable-prefix-caching: takes no value, and 'true' was given"
    )
    assert serve("--port", "1", "--port=2").port == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--port 99999", "--port 99999: must be an integer from 0 to 65535"),
        ("--port x", "--port x: must be an integer from 0 to 65535"),
        ("--prefill 65", "--prefill.workers 65: must be an integer from 0 to 64"),
        ("--decode 65", "--decode.workers 65: must be an integer from 0 to 64"),
        ("--seed -1", "--seed -1: must be an integer from 0 to 9223372036854775807"),
        ("--prefill.chunk-tokens 0", "--prefill.chunk-tokens 0: must be an integer >= 1"),
        ("--shutdown-timeout -1", "--shutdown-timeout -1: must be a number from 0 to 86400"),
        ("--recovery-seconds 0", "--recovery-seconds 0: must be a number from 1 to 86400"),
        ("--dtype bf16", "--dtype bf16: must be one of auto, bfloat16, float16, float32"),
        ("--block-size 17", "--block-size 17: must be one of 1, 2, 4, 8, 16, 32, 64, 128, 256"),
        (
            "--max-model-len 1",
            "--max-model-len 1: must be an integer >= 2, or auto, which is the model's own",
        ),
        ("--slo-ttft 0.2", "--slo-ttft 0.2: must be milliseconds, 1 at least, a day at most"),
        ("--slo-tpot 0.05", "--slo-tpot 0.05: must be milliseconds, 1 at least, a day at most"),
        ("--slo-tpot inf", "--slo-tpot inf: must be milliseconds, 1 at least, a day at most"),
        ("--cpus 3-1", "--cpus 3-1: must be CPUs such as 0-3,5"),
        ("--cpus 1,a", "--cpus 1,a: must be CPUs such as 0-3,5"),
        ("--devices tpu", f"--devices tpu: {DEVICES}"),
        ("--decode.devices cpu:7", f"--decode.devices cpu:7: {DEVICES}"),
        ("--prefill.devices cuda:0,gpu", f"--prefill.devices cuda:0,gpu: {DEVICES}"),
        (
            "--decode.kv-cache-memory-bytes 0",
            "--decode.kv-cache-memory-bytes 0: "
            "must be a number of bytes, at least 1, such as 512MiB or 2G",
        ),
    ],
)
def test_a_value_out_of_range_names_the_bounds(argv: str, message: str) -> None:
    assert refusal(*argv.split()) == message


def test_values_that_contradict_each_other() -> None:
    assert refusal("--chunk-tokens", "16", "--max-num-batched-tokens", "8") == (
        "prefill.chunk_tokens (16) must be <= prefill.max_num_batched_tokens (8)"
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--max-streams-per-key", "2"], "max_streams_per_key is nothing without api_key_file or"),
        (["--ssl-keyfile", "k"], "ssl_keyfile is nothing without ssl_certfile"),
        (
            ["--ssl-certfile", "c", "--ssl-ca-certs", "a"],
            "ssl_ca_certs is nothing without ssl_cert_reqs",
        ),
        (
            ["--ssl-certfile", "c", "--ssl-cert-reqs", "2"],
            "ssl_cert_reqs is nothing without ssl_ca_certs",
        ),
        (["--allow-credentials"], "allow_credentials is nothing without allowed_origins"),
    ],
)
def test_a_value_that_needs_another(argv: list[str], message: str) -> None:
    assert refusal(*argv).startswith(message)


def test_faults_of_the_environment() -> None:
    assert refusal(BATON_PORTS="1") == (
        "unknown environment variable BATON_PORTS; did you mean BATON_PORT?"
    )
    assert refusal(BATON_PREFILL__CHUNK_TOKEN="1") == (
        "unknown environment variable BATON_PREFILL__CHUNK_TOKEN; "
        "did you mean BATON_PREFILL__CHUNK_TOKENS?"
    )
    assert refusal(BATON_PORT="-1") == "BATON_PORT=-1: must be an integer from 0 to 65535"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ports = 1", "unknown key ports; did you mean port?"),
        ("[prefil]\nworkers = 1", "unknown key prefil; did you mean prefill?"),
        (
            "[prefill]\nchunk_token = 1",
            "unknown key prefill.chunk_token; did you mean prefill.chunk_tokens?",
        ),
        ("prefill = 2", "prefill is a section: write `workers = ...` under [prefill]"),
        ('port = "eighty"', "port = 'eighty': must be an integer from 0 to 65535"),
        ("port = true", "port = True: must be an integer from 0 to 65535"),
        ("api_key = ['a b']", f"api_key: must be {KEYS}"),
        (
            "trust_remote_code = true",
            "unknown key trust_remote_code: not supported: no code of a model's repository is run",
        ),
        ("port = 1.5", "port = 1.5: must be an integer from 0 to 65535"),
        ("[decode]\nworkers = 99", "decode.workers = 99: must be an integer from 0 to 64"),
        ('enable_prefix_caching = "no"', "enable_prefix_caching = 'no': must be true or false"),
    ],
)
def test_faults_of_a_file(toml: Path, text: str, message: str) -> None:
    toml.write_text(text)
    assert refusal("--config", str(toml)) == f"{toml}: {message}"


def test_a_file_that_cannot_be_read(toml: Path) -> None:
    assert refusal("--config", str(toml)) == f"--config {toml}: No such file or directory"
    toml.write_text("port =")
    assert refusal("--config", str(toml)).startswith(f"--config {toml}: not TOML: Invalid value")


def test_a_worker_reads_the_servers_file_and_has_one_pool_of_one(toml: Path) -> None:
    toml.write_text("port = 9\n[decode]\nworkers = 4\nchunk_tokens = 32\nmax_num_seqs = 8\n")
    argv = ["--join", "10.0.0.1:7000", "--config", str(toml), "--chunk-tokens", "16"]
    told = load_worker(Role.DECODE, argv, {})
    assert told.join == "tcp://10.0.0.1:7000"
    assert told.config.decode.workers == 1
    assert (told.config.decode.chunk_tokens, told.config.decode.max_num_seqs) == (16, 8)


@pytest.mark.parametrize("join", ["tcp://a:1", "ipc:///run/x/gateway", "[::1]:7000"])
def test_addresses_to_join(join: str) -> None:
    told = load_worker(Role.PREFILL, ["--join", join], {})
    assert told.join == (join if "://" in join else f"tcp://{join}")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: --join"),
        (
            ["--join", "somewhere"],
            "--join somewhere: must be tcp://HOST:PORT, HOST:PORT or ipc://PATH",
        ),
        (["--join", "a:1", "--port", "1"], "unknown flag --port"),
    ],
)
def test_faults_of_a_workers_command_line(argv: list[str], message: str) -> None:
    with pytest.raises(SetupError) as caught:
        load_worker(Role.PREFILL, argv, {})
    assert str(caught.value) == message


def test_help_lists_every_option_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        serve("--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    listed = [key for key in OPTIONS if "." not in key or key.endswith(".workers")]
    for key in listed:
        flag = rf"  {re.escape(OPTIONS[key].flag)}[ ,]"  # a comma: from Python 3.13 on
        assert len(re.findall(flag, text)) == 1, key
        assert OPTIONS[key].description, key


def test_the_cache_directory(tmp_path: Path) -> None:
    assert cache_dir(serve(BATON_CACHE_DIR=str(tmp_path))) == tmp_path
    assert cache_dir(serve()).name == "baton"


def test_what_kubernetes_says_of_a_service_named_baton_is_not_for_us() -> None:
    environ = {
        "BATON_SERVICE_HOST": "10.0.0.1",
        "BATON_SERVICE_PORT_HTTP": "80",
        "BATON_PORT": "tcp://10.0.0.1:80",
        "BATON_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load_serve([], environ) == load_serve([], {})
    assert load_serve([], {"BATON_PORT": "81"}).port == 81


def test_the_model_may_stand_without_its_flag_as_in_vllm() -> None:
    assert load_serve(["some/model", "--port", "81"], {}).model == "some/model"
    with pytest.raises(SetupError, match="unexpected argument 'b'"):
        load_serve(["--model", "a", "b"], {})


def test_a_file_as_editors_of_windows_write_it(toml: Path) -> None:
    toml.write_bytes(b"\xef\xbb\xbfmax_model_len = 4096\r\n[prefill]\r\nworkers = 2\r\n")
    config = serve("--config", str(toml))
    assert (config.max_model_len, config.prefill.workers) == (4096, 2)


def test_the_name_of_a_file_that_is_empty() -> None:
    assert refusal("--config=") == "--config: the name of the file is empty"
    assert refusal(BATON_CONFIG="") == "--config: the name of the file is empty"


def test_a_text_that_is_no_utf_8() -> None:
    assert refusal("--run-dir", "/tmp/\udcff").startswith("--run-dir /tmp/\udcff: must be text")
    assert refusal(BATON_SERVED_MODEL_NAME="\udcff").startswith("BATON_SERVED_MODEL_NAME=")
    with pytest.raises(SetupError, match="--join"):
        load_worker(Role.DECODE, ["--join", "tcp://\udcff:1"], {})
