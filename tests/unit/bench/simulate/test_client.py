import pytest

from bench.simulate.client import Client
from bench.simulate.model import EXACT, Wants, expected, generate, hashed, next_token
from common.errors import InvariantBroken
from common.params import FinishReason
from launch.gateway.events import Delta
from launch.gateway.transfers import Generate

REQUEST = generate("r", (1, 2, 3), 3)
WHOLE = expected(REQUEST, 0).tokens


def delta(
    index: int, tokens: list[int], finish: FinishReason | None = None, request: Generate = REQUEST
) -> Delta:
    return Delta(request.request, 0, index, tuple(tokens), finish, (), 0 if index == 0 else None)


def client() -> Client:
    return Client(REQUEST, 0.0)


def take(to: Client, *deltas: Delta) -> None:
    for each in deltas:
        to.take(each, 1.0, (EXACT,))


def test_a_whole_answer_is_over() -> None:
    one = client()
    take(one, delta(0, WHOLE[:1]), delta(1, WHOLE[1:], FinishReason.LENGTH))
    assert one.over
    assert one.whole


@pytest.mark.parametrize(
    "deltas",
    [
        (delta(0, WHOLE[:1]), delta(0, WHOLE[:1])),  # twice
        (delta(0, WHOLE[:1]), delta(2, WHOLE[2:], FinishReason.LENGTH)),  # a gap
        (delta(0, [WHOLE[0] + 1]),),  # another token
        (delta(0, WHOLE, None),),  # without its end
        (delta(0, WHOLE[:2], FinishReason.LENGTH),),  # too short
        (delta(0, [*WHOLE, next_token(hashed((1, 2, 3, *WHOLE)), 0)], FinishReason.LENGTH),),
    ],
)
def test_whatever_is_wrong_is_seen(deltas: tuple[Delta, ...]) -> None:
    with pytest.raises(InvariantBroken):
        take(client(), *deltas)


def test_nothing_follows_an_error() -> None:
    one = client()
    one.error = ValueError()
    with pytest.raises(InvariantBroken, match="after an error"):
        take(one, delta(0, WHOLE[:1]))


def test_an_answer_of_two_attempts_follows_each_in_turn() -> None:
    start = hashed(REQUEST.prompt)
    first = next_token(start, 0, 1)
    second = next_token(hashed((first,), start), 0, 2)
    one = client()
    one.take(delta(0, [first]), 1.0, (1,))
    one.take(delta(1, [second]), 1.0, (1, 2))
    of_the_first = next_token(hashed((second,), start), 0, 2)  # as if it had said `second` first
    with pytest.raises(InvariantBroken, match="draw of none"):
        one.take(delta(2, [of_the_first], FinishReason.LENGTH), 1.0, (1, 2))


def test_a_prompt_whose_scores_are_asked_for_has_them_with_the_first_tokens() -> None:
    request = generate("r", (1, 2, 3), 3, wants=Wants.SCORES)
    with pytest.raises(InvariantBroken, match="scores"):
        take(Client(request, 0.0), delta(0, WHOLE[:1], request=request))
