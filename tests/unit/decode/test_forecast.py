from decode.forecast import Future, page_passes, peak_pages, rank


def test_consecutive_ranks_are_spread_evenly() -> None:
    for start in (0, 77):
        places = sorted(rank(start + n) for n in range(16))
        assert all(abs(place - n / 16) < 0.1 for n, place in enumerate(places))


def test_one_sequence_is_largest_in_its_last_pass() -> None:
    assert peak_pages([Future(6, 3)], 4) == 2  # the KV of tokens 1 .. 8
    assert peak_pages([Future(6, 4)], 4) == 3
    assert peak_pages([Future(6, 4, n_shared=1)], 4) == 2


def test_nobody_needs_nothing() -> None:
    assert peak_pages([], 4) == 0


def test_the_peak_is_before_the_short_one_ends() -> None:
    assert peak_pages([Future(100, 1), Future(10, 50)], 1) == 110
    assert peak_pages([Future(10, 1), Future(10, 50)], 1) == 59
    assert peak_pages([Future(10, 20), Future(10, 20)], 1) == 58


def test_the_peak_may_be_in_between() -> None:
    futures = [Future(10, 5), Future(10, 10), Future(10, 30)]
    assert [Future(10, 5).n_tokens + 4, 2 * (10 + 9), 10 + 29] == [14, 38, 39]
    assert peak_pages(futures, 1) == 3 * 14
    assert peak_pages([Future(2, 5), Future(30, 20), Future(30, 22)], 1) == 2 * 49


def test_deviations_are_those_of_as_many_coins_as_there_are_sequences() -> None:
    futures = [Future(3, 1), Future(4, 1)]
    assert peak_pages(futures, 1, deviations=2.0) == 3 + 4 + 5
    assert peak_pages([Future(3, 1)] * 100, 1, deviations=1.0) == 300 + 15


def test_a_volume_is_pages_times_passes() -> None:
    assert page_passes(Future(6, 3), 4) == 2 + 2 + 2
    assert page_passes(Future(6, 4), 4) == 2 + 2 + 2 + 3
    assert page_passes(Future(6, 4, n_shared=1), 4) == 5
    assert page_passes(Future(1, 1), 4) == 1
