import math

import pytest

from bench import serve_flags
from bench.arrivals import RampUp
from bench.measures import Goodput
from bench.serve_flags import parse

RAMP = ("--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "4")
TRACE = ("--dataset-name", "timed_trace", "--dataset-path", "t")


@pytest.mark.parametrize(
    ("argv", "concurrency"),
    [
        ((), [1]),
        (("--max-concurrency", "1,8,32"), [1, 8, 32]),
        (("--request-rate", "inf"), [1]),
        (("--request-rate", "4"), [None]),
        (RAMP, [None]),
        (TRACE, [None]),
        ((*TRACE, "--max-concurrency", "4"), [4]),
    ],
)
def test_a_load_without_a_rate_is_one_client(
    argv: tuple[str, ...], concurrency: list[int | None]
) -> None:
    assert parse(argv).max_concurrency == concurrency


def test_arrivals_are_what_the_flags_say() -> None:
    made = serve_flags.arrivals(parse(["--request-rate", "4", "--burstiness", "0.5"]), 3)
    assert (made.request_rate, made.burstiness, made.max_concurrency) == (4.0, 0.5, 3)
    assert not made.timed
    assert math.isinf(serve_flags.arrivals(parse([]), 1).request_rate)
    ramp = serve_flags.arrivals(parse(RAMP), None).ramp_up
    assert ramp == RampUp(strategy="linear", start_rps=1.0, end_rps=4.0)


@pytest.mark.parametrize(
    ("argv", "timed"),
    [(TRACE, True), ((*TRACE, "--request-rate", "3"), False), (("--self-timed",), True)],
)
def test_a_trace_comes_at_its_own_times_unless_there_is_a_rate(
    argv: tuple[str, ...], *, timed: bool
) -> None:
    assert serve_flags.arrivals(parse(argv), None).timed is timed


def test_the_target() -> None:
    options = parse(
        [
            *("--base-url", "http://h:1/v1/", "--backend", "openai-chat"),
            *("--header", "Authorization=Bearer a=b", "X=1", "--extra-body", '{"top_k": 3}'),
        ]
    )
    made = serve_flags.target(options, "m")
    assert made.url == "http://h:1/v1/chat/completions"
    assert made.headers == {"Authorization": "Bearer a=b", "X": "1"}
    assert made.extra_body == {"top_k": 3}
    assert made.ignore_eos
    assert options.prompt_form == "text"


def test_host_and_port_make_a_url_and_an_endpoint_replaces_the_backends() -> None:
    options = parse(["--host", "h", "--port", "9", "--endpoint", "/x"])
    assert serve_flags.target(options, "m").url == "http://h:9/x"


@pytest.mark.parametrize(
    ("argv", "ignores"),
    [
        ((), True),
        (("--no-ignore-eos",), False),
        (("--dataset-name", "sharegpt", "--dataset-path", "t"), False),
        (("--dataset-name", "custom", "--dataset-path", "t", "--ignore-eos"), True),
    ],
)
def test_lengths_are_kept_where_they_are_the_workloads(
    argv: tuple[str, ...], *, ignores: bool
) -> None:
    assert parse(argv).ignore_eos is ignores


def test_goodput() -> None:
    assert serve_flags.goodput(parse([])) is None
    options = parse(["--goodput", "ttft:200", "e2el:5000"])
    assert serve_flags.goodput(options) == Goodput(ttft_ms=200, e2el_ms=5000)


def test_the_usual_percentiles_are_always_computed() -> None:
    options = parse(["--metric-percentiles", "50,99.9"])
    assert serve_flags.percentiles(options) == [50, 90, 95, 99, 99.9]


@pytest.mark.parametrize(
    "argv",
    [
        ("--request-rate", "0"),
        ("--request-rate", "-1"),
        ("--max-concurrency", "1,x"),
        ("--goodput", "itl:5"),
        ("--goodput", "ttft:-5"),
        ("--extra-body", "[1]"),
        ("--extra-body", "{"),
        ("--header", "nothing"),
        ("--metric-percentiles", "101"),
        ("--cancel-rate", "20"),
        ("--percentile-metrics", "ttft,speed"),
        ("--backend", "openai-chat", "--prompt-form", "ids"),
        RAMP[:4],
        (*RAMP, "--request-rate", "3"),
    ],
)
def test_what_makes_no_sense_is_refused(argv: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(argv)
    assert refused.value.code == 2


@pytest.mark.parametrize(
    ("argv", "fault"),
    [
        (
            ("--max-concurency", "1"),
            "unknown flag --max-concurency; did you mean --max-concurrency?",
        ),
        (("--num-prompt", "3"), "unknown flag --num-prompt; did you mean --num-prompts?"),
        (
            ("--dataset-name", "timed_trace"),
            "--dataset-name timed_trace needs --dataset-path FILE",
        ),
        (("--nothing-alike=1",), "unknown flag --nothing-alike; --help lists all"),
        (("8",), "unexpected argument '8': every setting has a flag"),
        (("--cancel-rate", "20"), "--cancel-rate: 20: must be from 0 to 1"),
    ],
)
def test_a_mistake_is_one_line(
    argv: tuple[str, ...], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(argv)
    assert capsys.readouterr().err == f"baton bench serve: error: {fault}\n"


def test_a_url_may_come_without_its_scheme() -> None:
    assert parse(["--base-url", "127.0.0.1:8711"]).base_url == "http://127.0.0.1:8711"
