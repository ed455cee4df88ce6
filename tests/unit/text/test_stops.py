from collections.abc import Sequence

import pytest

from common.errors import ClientError
from common.text.stops import StopAutomaton, StopStrings


def pushed(
    stops: Sequence[str], *texts: str, include: bool = False
) -> list[tuple[str, str | None]]:
    """What each push gives; the flush last."""
    search = StopStrings(StopAutomaton(stops), include_in_output=include)
    return [*map(search.push, texts), (search.flush(), None)]


def test_without_stop_strings_nothing_is_held_back() -> None:
    assert pushed([], "abc", "") == [("abc", None), ("", None), ("", None)]


def test_a_stop_string_within_one_piece_ends_the_text_before_it() -> None:
    assert pushed(["END"], "one END two") == [("one ", "END"), ("", None)]


def test_a_stop_string_over_three_pieces_never_shows() -> None:
    parts = pushed(["\n\nUser:"], "Hello\n", "\nUs", "er: hi")
    assert parts == [("Hello", None), ("", None), ("", "\n\nUser:"), ("", None)]


def test_what_turns_out_not_to_be_one_comes_with_the_piece_that_shows_it() -> None:
    assert pushed(["\n\nUser:"], "Hi\n", "\nUs", "!") == [
        ("Hi", None),
        ("", None),
        ("\n\nUs!", None),
        ("", None),
    ]


def test_only_what_may_still_become_one_is_held_back() -> None:
    assert pushed(["abab"], "xaba", "c", "aab") == [
        ("x", None),
        ("abac", None),
        ("a", None),
        ("ab", None),
    ]


def test_the_match_that_is_complete_first_counts() -> None:
    assert pushed(["long stop", "st"], "a long stop")[0] == ("a long ", "st")
    assert pushed(["bc", "abcd"], "abcd")[0] == ("a", "bc")


def test_of_matches_complete_at_one_character_the_longest_counts() -> None:
    assert pushed(["c", "abc", "bc"], "zabc")[0] == ("z", "abc")


def test_a_shorter_stop_string_within_a_failed_longer_one_is_found() -> None:
    assert pushed(["abcd", "bce"], "ab", "ce")[1] == ("a", "bce")


def test_a_stop_string_may_be_shown() -> None:
    parts = pushed(["END"], "one E", "ND two", include=True)
    assert parts == [("one E", None), ("ND", "END"), ("", None)]


def test_a_stop_string_that_may_not_stop_yet_is_ordinary_text() -> None:
    search = StopStrings(StopAutomaton(["ab"]))
    assert search.push("xabya", may_stop=False) == ("xaby", None)
    assert search.push("b", may_stop=True) == ("", "ab")


def test_samples_share_the_automaton() -> None:
    automaton = StopAutomaton(["ab"])
    one, other = StopStrings(automaton), StopStrings(automaton)
    assert one.push("a") == ("", None)
    assert other.push("b") == ("b", None)
    assert one.push("b") == ("", "ab")


def test_an_empty_stop_string_is_the_clients_error() -> None:
    with pytest.raises(ClientError, match="empty") as caught:
        StopAutomaton(["a", ""])
    assert caught.value.param == "stop"
