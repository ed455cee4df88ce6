"""What is broken after a run of chaos: each promise, broken by hand."""

import pytest

from bench.chaos.plan import Ask, Fault, Kind, Struck, Worker, prompts
from bench.chaos.record import Answer, Census, Record, Sample, Settings
from bench.chaos.verdict import Told, Truth, grown, growth_mb, tell, wrong
from bench.chaos.waits import Line
from bench.client import Outcome

TRUTH = Truth("one two three", 3)
FAULT = Struck(Fault(4, 25, Kind.KILL, 0, 0), Worker("decode", 9, "D" * 32), 25.04)
CENSUS = Census({"gateway": 40, "prefill 1": 20, "prefill 2": 22, "decode 3": 30}, 9)
EXIT = "time=t level=error process=gateway event=worker_exited worker=decode-0 exit_code={}\n"


def answer(text: str = TRUTH.text, *chunk_tokens: int, **more: object) -> Answer:
    tokens = list(chunk_tokens or (1, 1, 1))
    outcome = Outcome(
        index=0,
        scheduled_s=24,
        sent_s=24,
        ended_s=27,
        text=text,
        chunk_tokens=tokens,
        chunk_times_s=[25.0 + n for n in range(len(tokens))],
        output_tokens=3,
        request_id="cmpl-7f",
    )
    for name, value in more.items():
        setattr(outcome, name, value)
    return Answer(Ask("c3/17", 0, stream=True, leaves_after_s=None, thinks_s=0), outcome)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (answer(), None),
        (answer(TRUTH.text, 3), None),
        (
            answer("one too three"),
            "the text differs from character 5 on: 'oo three' instead of 'wo three'",
        ),
        (answer("one two"), "the text differs from character 7 on: '' instead of ' three'"),
        (answer(TRUTH.text, 1, 1, 2), "4 tokens came, usage says 3 of 3"),
        (answer(TRUTH.text, 1, 1), "2 tokens came, usage says 3 of 3"),
        (answer(output_tokens=4), "3 tokens came, usage says 4 of 3"),
        (answer(error="truncated", message="cut"), "truncated: cut"),
        (answer("one", 1, output_tokens=1, cancelled=True), None),
        (answer("", 0, cancelled=True), None),
        (
            answer("one one", 1, 1, cancelled=True),
            "the text differs from character 4 on: 'one' instead of 'two three'",
        ),
        (answer("one two three", 2, 2, cancelled=True), "4 tokens of 3 came"),
    ],
)
def test_an_answer_is_the_undisturbed_one_or_the_beginning_of_it(
    given: Answer, what: str | None
) -> None:
    assert wrong(given, TRUTH) == what


def record(*during: Answer) -> Record:
    settings = Settings((), 5, 60, 1, prompts(1, 1), ())
    made = Record(settings, before=[answer()], during=list(during), after=[answer()])
    made.struck, made.at_first, made.at_last, made.rested_after_s = [FAULT], CENSUS, CENSUS, 1.5
    return made


def told(made: Record, log: str = EXIT.format(-9), lines: tuple[Line, ...] = ()) -> Told:
    return tell(made, lines, log)


def test_nothing_is_broken() -> None:
    left = answer("one", 1, cancelled=True)
    refused = Answer(answer().ask, answer().outcome, n_refused=2)
    made = told(record(answer(), left, refused))
    assert made.broken == []
    wanted = {"requests": 3, "completed": 2, "abandoned": 1, "refused_before_served": 1}
    assert made.result.items() >= {**wanted, "broken": 0, "at_rest_after_s": 1.5}.items()
    assert made.result["faults"] == {"kill": 1, "stop": 0, "cut": 0}
    assert made.result["descriptors"]["after"] == {"gateway": 40, "prefill": 22, "decode": 30}


def test_a_wrong_answer_names_request_seed_and_fault() -> None:
    lines = (
        Line(1024, "received", "t", 0, "gateway", "cmpl-7f-0"),
        Line(1024, "routed", "t", 1, "gateway", "", "P", "D" * 32),
        Line(1027, "finished", "t", 1, "gateway", "cmpl-7f-0"),
    )
    made = record(answer("one two"))
    made.began = 1000.0
    assert told(made, lines=lines).broken == [
        "request c3/17 (prompt 0, streamed, seed 5, 24.0 to 27.0 s, cmpl-7f): the text differs "
        "from character 7 on: '' instead of ' three'; "
        "fault 4 (kill decode worker DDDDDDDD at 25.0 s)"
    ]
    (other,) = told(made).broken
    assert other.endswith("; no fault befell a worker that had it")


def test_what_is_asked_afterwards_counts_too() -> None:
    made = record()
    made.after = [answer("one two four")]
    (line,) = told(made).broken
    assert "'four' instead of 'three'" in line


def test_a_server_that_does_not_come_to_rest() -> None:
    made = record()
    made.rested_after_s = made.at_last = None
    (line,) = told(made).broken
    assert line.startswith("the server does not come to rest")


@pytest.mark.parametrize(
    ("last", "broken"),
    [
        (Census({"gateway": 40, "prefill 7": 28}, 9), []),  # it has met another peer
        (Census({"gateway": 41}, 9), ["gateway has 41 descriptors open, 40 before"]),
        (Census({"prefill 7": 29}, 9), ["prefill 7 has 29 descriptors open, 22 before"]),
        (Census({}, 10), ["10 files are in the run directory, 9 before"]),
    ],
)
def test_descriptors_and_files_that_are_left(last: Census, broken: list[str]) -> None:
    made = record()
    made.at_last = last
    assert told(made).broken == broken


def test_what_outlives_the_server() -> None:
    made = record()
    made.left = ["process 12: decode.worker", "/dev/shm/x"]
    assert told(made).broken == made.left


@pytest.mark.parametrize(
    ("log", "broken"),
    [
        (EXIT.format(-9), []),
        (EXIT.format(-11), ["decode-0 ended with -11"]),
        (EXIT.format(1), ["decode-0 ended with 1"]),
        (2 * EXIT.format(-9), ["2 workers were killed, 1 of them by us or by the server"]),
        (2 * EXIT.format(-9) + "time=t level=error event=worker_silent worker=decode-0\n", []),
        (
            "time=t level=critical process=g event=gateway_crashed\n",
            ["time=t level=critical process=g event=gateway_crashed"],
        ),
    ],
)
def test_workers_that_nobody_killed(log: str, broken: list[str]) -> None:
    assert told(record(), log).broken == broken


def samples(until_s: int, mb_per_minute: float, from_s: int = 0) -> list[Sample]:
    return [
        Sample(float(at_s), int(1e6 * (200 + mb_per_minute * at_s / 60)))
        for at_s in range(from_s, until_s + 1, 5)
    ]


def test_memory_that_grows_is_told_once_a_process_has_settled() -> None:
    assert growth_mb(samples(600, 0.5)) == pytest.approx(0.5, rel=1e-3)
    assert growth_mb(samples(700, 2.0, from_s=400)) == pytest.approx(2.0, rel=1e-3)
    assert growth_mb(samples(235, 9.0)) is None
    assert growth_mb(samples(630, 9.0, from_s=400)) is None
    early = [*samples(115, 60.0), *samples(600, 0.0, from_s=120)]
    assert growth_mb(early) == pytest.approx(0.0)
    assert grown({"gateway": 0.99, "decode 3": 1.01}) == ["decode 3 grows by 1.01 MB a minute"]


def test_growth_breaks_a_promise() -> None:
    made = record()
    made.samples = {"gateway": samples(600, 3.0), "decode 3": samples(100, 3.0)}
    assert told(made).broken == ["gateway grows by 3.00 MB a minute"]
    assert told(made).result["growth_mb_per_minute"] == {"gateway": pytest.approx(3.0, rel=1e-3)}
