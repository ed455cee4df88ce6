import pytest
from msgspec import structs

from common.engine.refusal import Refusal
from common.messages import Limits
from prefill.admission import Prediction, predicted, refusal, too_late, ttft_s
from prefill.pace import Cost
from prefill.state import Phase
from tests.unit.prefill.prompts import EVEN, computed, prompt, stating

LIMITS = Limits(
    n_pages=10,
    page_tokens=10,
    max_model_len=200,
    max_num_seqs=8,
    max_num_batched_tokens=100,
    max_waiting=2,
)


def test_what_will_never_fit_is_refused_for_good() -> None:
    assert refusal(100, [], LIMITS, 0.0, full=False) is None
    kv = Refusal("101 tokens of 100 that fit the KV cache", None)
    assert refusal(101, [], LIMITS, 0.0, full=False) == kv
    context = Refusal("200 tokens of 199 that fit the context", None)
    assert refusal(200, [], structs.replace(LIMITS, n_pages=100), 0.0, full=False) == context


def test_a_full_queue_says_when_to_come_again() -> None:
    assert refusal(10, [500, 500], LIMITS, 100.0, full=True) == Refusal("2 prompts of 2 wait", 10.0)
    assert refusal(10, [500, 500], LIMITS, 0.0, full=True) == Refusal("2 prompts of 2 wait", 1.0)


def test_who_is_late_for_what_is_ahead_may_come_again_once_it_is_done() -> None:
    behind = Prediction(own=0.5, ahead=4.0, ttft=4.5)
    assert too_late(behind, 5.0, 5.0, 5.0) is None
    text = "first token predicted in 5.00 s, owed in 2.00 s"
    assert too_late(behind, 5.0, 2.0, 2.0) == Refusal(text, 3.0, 5.0)  # then 1.5 s are ahead
    soon = too_late(behind, 5.01, 5.0, 5.0)
    assert soon is not None
    assert soon.retry_after_s == 1.0
    aside = Prediction(own=2.0, ahead=60.0, ttft=4.0)  # behind half of a document's passes
    refused = too_late(aside, 4.0, 3.0, 3.0)
    assert refused is not None
    assert refused.retry_after_s == 59.0


def test_a_prediction_must_keep_less_where_others_are_ahead_and_predictions_err() -> None:
    assert too_late(Prediction(own=0.5, ahead=0.0, ttft=0.5), 0.9, 1.0, 0.8) is None
    behind = Prediction(own=0.5, ahead=0.4, ttft=0.9)
    assert too_late(behind, 0.8, 1.0, 0.8) is None
    refused = too_late(behind, 0.9, 1.0, 0.8)
    assert refused is not None
    assert refused.retry_after_s == 1.0  # it is not for nothing that it comes again


def test_a_first_token_waits_for_the_end_of_a_pass_that_others_fill() -> None:
    behind = Prediction(own=0.05, ahead=0.5, ttft=0.55)
    assert ttft_s(behind, 0.1, 0.25) == pytest.approx(0.1 + 3 * 0.25)
    assert ttft_s(Prediction(own=0.05, ahead=0.0, ttft=0.05), 0.1, 0.25) == pytest.approx(0.15)


def test_who_would_be_late_alone_need_not_come_again() -> None:
    text = "first token predicted in 36.50 s, owed in 2.00 s"
    assert too_late(Prediction(own=32.0, ahead=4.0, ttft=36.0), 36.5, 2.0, 2.0) == Refusal(
        text, None, 32.0
    )


def test_what_is_due_no_later_and_is_still_to_be_computed_comes_first() -> None:
    begun = stating("begun", 30)
    begun.phase, begun.planned = Phase.RUNNING, 20
    done = computed("done", 30, accepted=False, due=1.0)
    queue = [begun, done, stating("a", 30, due=2.0), stating("b", 50, due=3.0)]
    assert predicted(queue, 2.0, 0, 5, EVEN).ttft == pytest.approx(0.010 + 0.030 + 0.005)
    assert predicted(queue, 0.5, 0, 5, EVEN).ttft == pytest.approx(0.005)


def test_others_that_are_due_have_half_of_each_pass() -> None:
    queue = [prompt("document", 400), prompt("another", 400), stating("question", 40)]
    assert predicted(queue, 1.0, 0, 20, EVEN).ttft == pytest.approx(2 * (0.040 + 0.020))
    assert predicted(queue, 1.0, 0, 20, EVEN).ahead == pytest.approx(0.840)
    assert predicted(queue, 1.0, 0, 20, EVEN).own == pytest.approx(0.020)
    assert predicted([prompt("a", 12)], 1.0, 0, 20, EVEN).ttft == pytest.approx(0.012 + 0.020)


def test_a_prediction_counts_what_tokens_attend_to() -> None:
    deep = Cost(0.0, 0.001)
    assert predicted([], 1.0, 100, 10, deep).ttft == pytest.approx(10 * 105 * 0.001)
    begun = stating("begun", 30)
    begun.phase, begun.planned = Phase.RUNNING, 20
    assert predicted([begun], 1.0, 0, 10, deep).ttft == pytest.approx((10 * 25 + 10 * 5) * 0.001)
