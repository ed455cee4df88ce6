"""The forecast against what it claims: a peak is the largest of all passes, a prediction is
within its bounds, grows with the rank and with what is said, and is right on the average."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from common.engine.lengths import Lengths
from common.kv.layout import pages_for
from decode.forecast import Future, page_passes, peak_pages, rank

FUTURES = st.builds(Future, st.integers(1, 60), st.integers(1, 40))
ENDS = st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30)
RANKS = st.floats(0, 1, exclude_max=True)


def held(future: Future, at: int, page_tokens: int) -> int:
    """In pass `at`, from 1 on."""
    if at > future.n_left:
        return 0
    return pages_for(future.n_tokens + at - 1, page_tokens) - future.n_shared


@given(st.lists(FUTURES, max_size=12), st.integers(1, 17))
def test_the_peak_is_the_largest_of_all_passes(futures: list[Future], page_tokens: int) -> None:
    passes = [sum(held(f, at, page_tokens) for f in futures) for at in range(1, 41)]
    assert peak_pages(futures, page_tokens) == max(passes)


@given(FUTURES, st.integers(1, 17))
def test_a_volume_is_the_sum_of_all_passes(future: Future, page_tokens: int) -> None:
    passes = [held(future, at, page_tokens) for at in range(1, 41)]
    assert page_passes(future, page_tokens) == sum(passes)


@given(ENDS, st.integers(0, 60), st.integers(1, 60), RANKS, RANKS)
def test_predictions_are_bounded_and_ordered(
    ends: list[tuple[int, bool]], n_said: int, more: int, low: float, high: float
) -> None:
    lengths = Lengths()
    for n, cut in ends:
        lengths.ended(n, cut=cut)
    lengths.go_on(())
    low, high = sorted((low, high))
    predicted = lengths.predict(n_said, n_said + more, low)
    assert n_said < predicted <= n_said + more
    assert predicted <= lengths.predict(n_said, n_said + more, high)
    if predicted > n_said + 1:
        assert lengths.predict(n_said + 1, n_said + more, low) >= predicted


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(20, 400))
def test_on_the_average_it_is_right_whatever_was_cut_off(seed: int, most: int) -> None:
    """Half of those seen were cut off somewhere: the mean of what is predicted is still true."""
    random = Random(seed)
    true = [max(1, round(random.gammavariate(2, 50))) for _ in range(500)]
    lengths = Lengths()
    for n in true:
        limit = random.choice((random.randrange(1, 200), 10_000))
        lengths.ended(min(n, limit), cut=n >= limit)
    lengths.go_on(())
    mean = sum(lengths.predict(0, most, rank(n)) for n in range(1000)) / 1000
    truth = sum(min(n, most) for n in true) / 500
    assert abs(mean / truth - 1) < 0.12
