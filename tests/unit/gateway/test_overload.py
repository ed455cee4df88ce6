"""Early rejection by what tokens would take: now, and when the prompt is computed."""

from dataclasses import replace

import pytest

from common.engine.pace import FEWEST_PASSES, SHARE, Pace
from common.errors import TpotHopeless, TpotMissed
from common.messages import End, Expect
from common.params import FinishReason
from launch.gateway.attempts import GatewayOptions
from launch.gateway.events import Admitted, Rejected
from launch.gateway.overload import (
    KNOWN_FOR_S,
    LEARN_EVERY_S,
    RETRY_MAX_S,
    Answer,
    Device,
    device_of,
    judge,
)
from launch.gateway.transfers import RETRY_MIN_S, Slo
from tests.unit.gateway.builders import (
    D2,
    Bench,
    D,
    P,
    failed,
    generate,
    run,
    snapshot,
    tokens,
)

BASE_S, ROW_S, TOKEN_S = 4e-3, 1e-3, 1e-5


def device(max_num_seqs: int = 64, most: int = 64) -> Device:
    """A pass takes 4 ms, 1 ms a sequence and 10 us a token of context."""
    return Device(BASE_S, ROW_S, TOKEN_S, most, max_num_seqs)


def answers(
    n: int, *, starts_s: float = 0.0, n_tokens: int = 100, n_left: int = 100
) -> list[Answer]:
    return [Answer(starts_s, n_tokens, n_left)] * n


OWN = answers(1)
OWED_S = 0.051 / SHARE  # 23 answers of 100 tokens take 4 + 23 + 23 ms


def refused(others: list[Answer], at_s: float = 0.0, on: Device | None = None) -> bool:
    return judge(OWN, OWED_S, others, on or device(), at_s) is not None


def test_who_is_one_too_many_is_refused_and_told_what_a_token_would_take() -> None:
    assert not refused(answers(22))
    verdict = judge(OWN, OWED_S, answers(24), device(), 0.0)
    assert verdict is not None
    assert verdict.tpot_s == pytest.approx(BASE_S + 25 * (ROW_S + 100 * TOKEN_S))


@pytest.mark.parametrize("n_others", [0, 1, 30])
def test_who_would_be_too_slow_on_an_idle_worker_is_told_so(n_others: int) -> None:
    verdict = judge(OWN, 1e-4, answers(n_others), device(), 0.0)
    assert verdict is not None
    assert verdict.retry_after_s is None
    assert verdict.tpot_s == pytest.approx(BASE_S + ROW_S + 100 * TOKEN_S)
    assert isinstance(verdict.error(1e-4), TpotHopeless)


def test_an_idle_worker_takes_no_longer_than_any_pass_took() -> None:
    """Whatever few passes make one believe of the context's share."""
    on = replace(device(), token_s=1.0, least_s=0.005)
    assert judge(OWN, 0.005, [], on, 0.0) is None
    verdict = judge(OWN, 0.004, [], on, 0.0)
    assert verdict is not None
    assert (verdict.tpot_s, verdict.retry_after_s) == (0.005, None)


def test_whoever_would_be_alone_and_just_in_time_is_taken() -> None:
    alone_s = BASE_S + ROW_S + 100 * TOKEN_S
    assert judge(OWN, alone_s, [], device(), 0.0) is None
    beside = judge(OWN, alone_s, answers(1), device(), 0.0)
    assert beside is not None
    assert beside.retry_after_s is not None


def test_who_will_have_ended_when_the_prompt_is_computed_does_not_count() -> None:
    step_s = BASE_S + 30 * (ROW_S + 100 * TOKEN_S)
    assert refused(answers(30, n_left=10), at_s=5 * step_s)
    assert not refused(answers(30, n_left=10), at_s=11 * step_s)


def test_who_comes_before_the_prompt_is_computed_counts() -> None:
    others = [*answers(10), *answers(20, starts_s=0.5)]
    assert not refused(others, at_s=0.4)
    assert refused(others, at_s=0.6)


def test_what_runs_has_grown_by_then() -> None:
    others = answers(22, n_left=1000)
    assert not refused(others, at_s=0.0)
    assert refused(others, at_s=10.0)


def test_who_does_not_fit_a_pass_takes_turns() -> None:
    few = device(max_num_seqs=10)
    assert not refused(answers(9), on=few)
    assert refused(answers(30), on=few)  # a pass of 10 takes 24 ms, each has a third of them


def test_nobody_is_refused_before_passes_of_the_size_were_measured() -> None:
    assert not refused(answers(60), on=device(most=8))
    assert device_of(Pace(), 64) is None


def test_come_again_when_enough_have_ended() -> None:
    step_s = BASE_S + 26 * (ROW_S + 100 * TOKEN_S)
    others = [*answers(3, n_left=40), *answers(2, n_left=100), *answers(21, n_left=4000)]
    verdict = judge(OWN, OWED_S, others, device(), 0.0)
    assert verdict is not None
    assert verdict.retry_after_s == pytest.approx(100 * step_s)
    sooner = judge(OWN, OWED_S, [*answers(22, n_left=40), *answers(2, n_left=9)], device(), 0.0)
    assert sooner is not None
    assert sooner.retry_after_s == RETRY_MIN_S
    much_later = judge(OWN, OWED_S, answers(30, n_left=10_000), device(), 0.0)
    assert much_later is not None
    assert much_later.retry_after_s == RETRY_MAX_S


# --- in the gateway --------------------------------------------------------------------------

SLO = Slo(tpot_s=0.032)  # an idle worker would keep it


def teach(bench: Bench, step_s: float = 0.03) -> None:
    """What passes take, beside whatever is decoded now."""
    for sequence in range(2, 2 + FEWEST_PASSES):
        bench.now += LEARN_EVERY_S
        bench.hear(snapshot(sequence, whole=False, busy=1, step_s=step_s))


def crowded(policy: str = "predicted", *workers: str) -> Bench:
    """One answer is decoded, a step takes 30 ms."""
    options = GatewayOptions(admission=policy)  # pyright: ignore[reportArgumentType]
    bench = Bench(*workers, options=options)  # pyright: ignore[reportArgumentType]
    bench.admitted(generate("first", max_tokens=50))
    bench.hear(tokens(run(0, 7)), sender=P)
    bench.hear(tokens(run(1, 7)))
    teach(bench)
    return bench


def errors(bench: Bench) -> list[Exception]:
    return [rejected.error for rejected in bench.did(Rejected)]


@pytest.mark.parametrize("policy", ["load", "predicted"])
def test_a_request_whose_tokens_would_be_slow_costs_no_work(policy: str) -> None:
    bench = crowded(policy)
    bench.submit(generate("second", n_prompt=8, slo=SLO))
    (error,) = errors(bench)
    assert isinstance(error, TpotMissed)
    assert str(error) == (
        "a token is predicted to take 30 ms, and 32 ms are owed (slo.tpot_ms, or the server's "
        "--slo-tpot); come again later, or state a longer time"
    )
    assert (error.status, error.param) == (429, "slo.tpot_ms")
    assert error.retry_after_s is not None
    assert error.retry_after_s >= RETRY_MIN_S
    assert bench.opened == []
    assert bench.said(End) == []
    assert bench.core.n_requests == 1


def test_what_an_idle_server_would_miss_is_refused_on_an_idle_one_too() -> None:
    bench = crowded()
    hopeless = Slo(tpot_s=0.001)
    bench.submit(generate("beside", slo=hopeless))
    (beside,) = errors(bench)
    bench.hear(tokens(run(2, 7, finish=FinishReason.STOP)))
    bench.submit(generate("alone", slo=hopeless))
    (alone,) = errors(bench)
    for error in (beside, alone):
        assert isinstance(error, TpotHopeless)
        assert str(error).startswith("even an idle server would take ")
        assert (error.status, error.param, error.retry_after_s) == (429, "slo.tpot_ms", None)
    bench.now += LEARN_EVERY_S + KNOWN_FOR_S + 1.0
    bench.submit(generate("much later", slo=hopeless))
    assert errors(bench) == []  # nothing is known any more


def test_nobody_is_refused_where_the_operator_wants_it_so() -> None:
    bench = crowded("none")
    bench.submit(generate("second", slo=Slo(ttft_s=0.1, tpot_s=0.02)))
    assert errors(bench) == []
    (expect,) = bench.said(Expect)
    assert expect.deadline_s is not None
    assert (expect.tpot_s, expect.refuse_if_late) == (0.02, False)


def test_who_states_no_time_per_token_is_taken() -> None:
    bench = crowded()
    bench.submit(generate("second", slo=Slo(ttft_s=5.0)))
    bench.submit(generate("third"))
    assert errors(bench) == []


def test_another_decode_worker_takes_it() -> None:
    bench = crowded("predicted", P, D, D2)
    bench.submit(generate("second", slo=SLO))
    assert [decode for *_, decode in bench.opened] == [D2]


def test_who_was_promised_an_answer_is_not_refused_later() -> None:
    bench = Bench()
    bench.admitted(generate("first", max_tokens=50))
    bench.hear(tokens(run(0, 7)), sender=P)
    bench.hear(tokens(run(1, 7)))
    bench.submit(generate("second", slo=SLO))
    (expect,) = bench.said(Expect)
    teach(bench)
    bench.hear(failed(), sender=P)
    bench.hear(tokens(run(0, 7, transfer=expect.transfer)), sender=P)
    assert len(bench.did(Admitted)) == 1
    bench.submit(generate("third", slo=Slo(tpot_s=0.001)))
    assert len(errors(bench)) == 1
    bench.down(P)
    bench.tick(1.0)
    assert errors(bench) == []


def test_what_ended_lately_tells_how_long_others_go_on() -> None:
    """Three tokens each: the first is over when a second prompt is computed."""
    bench = Bench()
    for n in range(1, 200):
        told = f"t{n}"
        bench.admitted(generate(f"r{n}", max_tokens=50))
        bench.hear(tokens(run(0, 7, transfer=told)), sender=P)
        bench.hear(tokens(run(1, 7, 7, transfer=told, finish=FinishReason.STOP)))
    bench.admitted(generate("first", max_tokens=50))
    bench.hear(tokens(run(0, 7, transfer="t200")), sender=P)
    bench.hear(tokens(run(1, 7, transfer="t200")))
    teach(bench)
    bench.submit(generate("short", slo=SLO))
    assert len(errors(bench)) == 1
    bench.submit(generate("long", n_prompt=200, slo=SLO))  # 0.2 s to compute it
    assert errors(bench) == []


def test_what_is_learnt_of_a_worker_goes_with_it() -> None:
    bench = crowded()
    bench.down(D)
    bench.up(D2)
    bench.tick(1.0)
    bench.submit(generate("second", slo=SLO))
    assert errors(bench) == []
