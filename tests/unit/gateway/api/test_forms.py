"""Answers in the form that their endpoint promises, held against the types of OpenAI's client."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from common.messages import SamplingParams, TokenLogprob
from common.text.load import TextModel
from common.text.stops import StopAutomaton
from launch.gateway.api.answer import Piece, Scored, Usage
from launch.gateway.api.chat_form import ChatForm
from launch.gateway.api.completion_form import CompletionForm
from launch.gateway.api.forms import Gathered, chosen
from launch.gateway.api.prepare import Prepared, Prompt
from launch.gateway.transfers import Fields, Slo

PARIS, THE, OF, HALF = 7042, 504, 282, 10813  # " Paris", "The", " of", two bytes of an emoji
USAGE = Usage(prompt_tokens=5, completion_tokens=2, cached_tokens=4)
MANY = 20  # alternatives: all that there are
USAGE_BODY = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
}


def prepared(
    *,
    logprobs: bool = False,
    include_usage: bool = False,
    continuous_usage: bool = False,
    return_token_ids: bool = False,
    n: int = 2,
) -> Prepared:
    return Prepared(
        prompts=(Prompt(ids=(1, 2), text=None, params=SamplingParams(max_tokens=4, seed=1)),),
        n=n,
        n_told=2,
        stops=StopAutomaton(()),
        include_stop=False,
        skip_special_tokens=True,
        min_tokens=0,
        logprobs=MANY if logprobs else None,
        prompt_logprobs=None,
        echo=False,
        generates=True,
        stream=True,
        include_usage=include_usage,
        continuous_usage=continuous_usage,
        return_token_ids=return_token_ids,
        slo=Slo(),
        timeout_s=None,
        salt="",
        priority=0,
        calling=None,
        thinks=None,
        fields=Fields(),
    )


def completions(smollm2: TextModel, **options: bool) -> CompletionForm:
    return CompletionForm("cmpl-1", "tiny", smollm2.tokenizer, prepared(**options))


def chats(smollm2: TextModel, **options: bool) -> ChatForm:
    return ChatForm("chatcmpl-1", "tiny", smollm2.tokenizer, prepared(**options))


def scored(token: int, logprob: float, offset: int, *others: tuple[int, float]) -> Scored:
    ids, values = zip(*others, strict=True) if others else ((), ())
    return Scored(token, TokenLogprob(token, logprob, 1, ids, values), offset)


def events(data: bytes) -> list[dict[str, Any]]:
    texts = data.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(text.removeprefix("data: ")) for text in texts]


def gathered(*pieces: Piece) -> list[Gathered]:
    choices = [Gathered(), Gathered()]
    for piece in pieces:
        choices[piece.choice].add(piece)
    return choices


def check_completion(body: dict[str, Any]) -> None:
    """Against the type, which knows nothing of the null that OpenAI's own streams have."""
    choices = [{**c, "finish_reason": c["finish_reason"] or "stop"} for c in body["choices"]]
    Completion.model_validate({**body, "choices": choices}, strict=True)


# --- completions -----------------------------------------------------------------------------


def test_an_event_of_a_completion(smollm2: TextModel) -> None:
    (event,) = events(completions(smollm2).event(Piece(1, " Paris")))
    check_completion(event)
    created = event.pop("created")
    assert isinstance(created, int)
    assert event == {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "tiny",
        "choices": [
            {
                "index": 1,
                "text": " Paris",
                "logprobs": None,
                "finish_reason": None,
                "stop_reason": None,
            }
        ],
    }


def test_usage_comes_in_an_event_of_its_own_and_is_null_before(smollm2: TextModel) -> None:
    form = completions(smollm2, include_usage=True)
    (event,) = events(form.event(Piece(0, "a")))
    assert event["usage"] is None
    (last,) = events(form.last(USAGE))
    assert (last["choices"], last["usage"]) == ([], USAGE_BODY)


def test_a_whole_completion(smollm2: TextModel) -> None:
    choices = gathered(
        Piece(1, "b", finish="length"), Piece(0, "a"), Piece(0, "c", finish="stop", stop_reason="x")
    )
    body = json.loads(completions(smollm2).whole(choices, USAGE))
    answer = Completion.model_validate(body, strict=True)
    assert [(c.index, c.text, c.finish_reason) for c in answer.choices] == [
        (0, "ac", "stop"),
        (1, "b", "length"),
    ]
    assert [choice["stop_reason"] for choice in body["choices"]] == ["x", None]
    assert body["usage"] == USAGE_BODY


def test_logprobs_of_a_completion(smollm2: TextModel) -> None:
    pieces = (
        Piece(0, "The", scored=(scored(THE, -2.0, 0),)),
        Piece(0, " Paris", scored=(scored(PARIS, -0.5, 3, (PARIS, -0.5), (OF, -1.5)),)),
        Piece(0, "", scored=(scored(HALF, -3.0, 9, (OF, -0.25)),), finish="length"),
    )
    body = json.loads(completions(smollm2, logprobs=True).whole(gathered(*pieces), USAGE))
    check_completion(body)
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["The", " Paris", "\ufffd"],
        "token_logprobs": [-2.0, -0.5, -3.0],
        "top_logprobs": [
            {"The": -2.0},
            {" Paris": -0.5, " of": -1.5},
            {" of": -0.25, "\ufffd": -3.0},
        ],
        "text_offset": [0, 3, 9],
    }
    assert body["choices"][1]["logprobs"]["tokens"] == []


def test_a_prompts_first_token_has_no_logprob(smollm2: TextModel) -> None:
    piece = Piece(0, "The", scored=(Scored(THE, None, 0),), finish="length")
    body = json.loads(completions(smollm2, logprobs=True).whole(gathered(piece), USAGE))
    scores = body["choices"][0]["logprobs"]
    assert (scores["token_logprobs"], scores["top_logprobs"]) == ([None], [None])


def test_token_ids_of_a_completion(smollm2: TextModel) -> None:
    form = completions(smollm2, return_token_ids=True)
    pieces = (Piece(0, "The", tokens=(THE,)), Piece(0, " of", tokens=(OF,), finish="length"))
    streamed = [events(form.event(piece))[0]["choices"][0] for piece in pieces]
    assert [(c["token_ids"], c.get("prompt_token_ids")) for c in streamed] == [
        ([THE], [1, 2]),
        ([OF], None),
    ]
    whole = json.loads(form.whole(gathered(*pieces), USAGE))["choices"][0]
    assert (whole["token_ids"], whole["prompt_token_ids"]) == ([THE, OF], [1, 2])


def test_of_more_samples_the_likeliest_a_token_are_told_the_best_first() -> None:
    """By their own tokens: an echo's are the same in all."""

    def said(*logprobs: float) -> Gathered:
        one = Gathered()
        one.add(Piece(0, "echo", scored=(scored(THE, -9.0, 0),)))
        for n, value in enumerate(logprobs, 1):
            one.add(Piece(0, "a", scored=(scored(THE, value, n),), n_tokens=n))
        return one

    samples = [said(-1.0), said(-3.0, -0.5, -0.1), said(-0.5, -0.5), said(-1.0, -1.0)]
    first, second, third, fourth = samples
    assert chosen(samples, prepared(n=4)) == [third, first]
    assert chosen([*samples, fourth, *samples[:3]], prepared(n=4)) == [third, first, third, fourth]
    assert chosen(samples[:2], prepared()) == [first, second]


# --- chats -----------------------------------------------------------------------------------


def deltas(data: Sequence[dict[str, Any]]) -> list[tuple[int, dict[str, Any], str | None]]:
    chunks = [ChatCompletionChunk.model_validate(event, strict=True) for event in data]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    return [(c["index"], c["delta"], c["finish_reason"]) for e in data for c in e["choices"]]


def test_events_of_a_chat(smollm2: TextModel) -> None:
    form = chats(smollm2)
    data = form.opening(2) + form.event(Piece(1, "Hi")) + form.event(Piece(1, "", finish="stop"))
    assert deltas(events(data)) == [
        (0, {"role": "assistant", "content": ""}, None),
        (1, {"role": "assistant", "content": ""}, None),
        (1, {"content": "Hi"}, None),
        (1, {}, "stop"),
    ]


def test_usage_of_a_streamed_chat(smollm2: TextModel) -> None:
    form = chats(smollm2, include_usage=True)
    assert [event["usage"] for event in events(form.opening(2))] == [None, None]
    (last,) = events(form.last(USAGE))
    ChatCompletionChunk.model_validate(last, strict=True)
    assert (last["choices"], last["usage"]) == ([], USAGE_BODY)


def test_a_whole_chat(smollm2: TextModel) -> None:
    choices = gathered(Piece(0, "Hi"), Piece(0, "!", finish="stop"), Piece(1, "", finish="length"))
    body = json.loads(chats(smollm2).whole(choices, USAGE))
    answer = ChatCompletion.model_validate(body, strict=True)
    assert [c.message.content for c in answer.choices] == ["Hi!", ""]
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hi!",
        "refusal": None,
    }
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"] == USAGE_BODY


@pytest.mark.parametrize("streamed", [False, True])
def test_logprobs_of_a_chat(smollm2: TextModel, streamed: bool) -> None:  # noqa: FBT001
    form = chats(smollm2, logprobs=True)
    piece = Piece(0, "", scored=(scored(HALF, -3.0, 0, (OF, -0.25)),), finish="length")
    other = Piece(1, "", finish="stop")
    if streamed:
        (body,) = events(form.event(piece))
        ChatCompletionChunk.model_validate(body, strict=True)
    else:
        body = json.loads(form.whole(gathered(piece, other), USAGE))
        ChatCompletion.model_validate(body, strict=True)
    assert body["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -3.0,
                "bytes": [0xF0, 0x9F],
                "top_logprobs": [{"token": " of", "logprob": -0.25, "bytes": list(b" of")}],
            }
        ],
        "refusal": None,
    }


def test_token_ids_of_a_chat(smollm2: TextModel) -> None:
    form = chats(smollm2, return_token_ids=True)
    opened = events(form.opening(2))
    assert [event.get("prompt_token_ids") for event in opened] == [[1, 2], None]
    (event,) = events(form.event(Piece(0, "The", tokens=(THE,))))
    assert event["choices"][0]["token_ids"] == [THE]
    body = json.loads(form.whole(gathered(Piece(1, "The", tokens=(THE,))), USAGE))
    assert [c["token_ids"] for c in body["choices"]] == [[], [THE]]
    assert body["prompt_token_ids"] == [1, 2]


def test_events_may_tell_what_their_choice_has_used(smollm2: TextModel) -> None:
    asked = {"include_usage": True, "continuous_usage": True}
    for form in (completions(smollm2, **asked), chats(smollm2, **asked)):
        told = events(form.opening(2) + form.event(Piece(1, "a", n_tokens=3)) + form.last(USAGE))
        used = [event["usage"] for event in told]
        assert used[-2] == {
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": None,
        }
        assert used[-1] == USAGE_BODY
        assert all(usage["completion_tokens"] == 0 for usage in used[:-2])


@given(
    texts=st.lists(st.tuples(st.integers(0, 1), st.text()), max_size=8),
    model=st.sampled_from(["tiny", '(text)"', "\\"]),
    include_usage=st.booleans(),
)
def test_an_event_of_text_alone_is_to_the_byte_what_its_type_encodes(
    smollm2: TextModel, texts: list[tuple[int, str]], model: str, *, include_usage: bool
) -> None:
    for kind in (CompletionForm, ChatForm):
        filled, made = (
            kind("id-1", model, smollm2.tokenizer, prepared(include_usage=include_usage))
            for _ in range(2)
        )
        made._created = filled._created
        for n, (choice, text) in enumerate(texts, start=1):
            piece = Piece(choice, text, n_tokens=n)
            assert filled.event(piece) == made._event(piece)
