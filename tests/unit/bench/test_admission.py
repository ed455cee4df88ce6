from bench.simulate.admission import Blind, Outcome, Setting, simulate
from common.engine.lengths import Lengths
from decode.forecast import Foresight

SETTING = Setting(
    n_requests=80, n_open=20, mean_prompt=16, mean_output=60, max_tokens=200, n_pages=100,
    page_tokens=4, max_num_seqs=12,
)  # fmt: skip


def outcome(foresight: Foresight) -> Outcome:
    return simulate(SETTING, foresight)


def test_the_same_setting_gives_the_same_outcome() -> None:
    assert outcome(Lengths()) == outcome(Lengths())


def test_the_forecast_preempts_less_and_computes_less_again() -> None:
    fits_now, forecast = outcome(Blind()), outcome(Lengths())
    assert fits_now.preemptions > forecast.preemptions
    assert fits_now.recomputed_tokens > 2 * forecast.recomputed_tokens
    assert fits_now.output_tokens == forecast.output_tokens
