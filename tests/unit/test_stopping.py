"""When a sample ends, as far as token ids can tell."""

from common.params import FinishReason, SamplingParams
from common.stopping import token_rules

PARAMS = SamplingParams(max_tokens=5, seed=0, end_token_ids=(2, 7), stop_token_ids=(9,))


def after(n_outputs: int, token: int, *, max_model_len: int = 100) -> FinishReason | None:
    return token_rules(PARAMS, n_outputs, token, n_prompt=10, max_model_len=max_model_len)


def test_any_end_or_stop_token_ends_the_sample() -> None:
    assert [after(1, token) for token in (2, 7, 9)] == [FinishReason.STOP] * 3
    assert after(1, 3) is None


def test_the_last_allowed_token_ends_it_by_length() -> None:
    assert after(4, 3) is None
    assert after(5, 3) is FinishReason.LENGTH


def test_a_full_context_ends_it_by_length() -> None:
    assert after(3, 3, max_model_len=14) is None
    assert after(4, 3, max_model_len=14) is FinishReason.LENGTH


def test_stopping_is_the_reason_where_a_length_is_reached_as_well() -> None:
    assert after(5, 2) is FinishReason.STOP
    assert after(4, 9, max_model_len=14) is FinishReason.STOP
