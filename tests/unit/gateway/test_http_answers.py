"""From a worker's tokens to what a client reads, through the whole application."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from common.messages import FinishReason
from common.text.load import TextModel
from tests.unit.gateway.scripted import CACHED_TOKENS, Said, Says, Served, serving

END = 2  # <|im_end|>
USER = {"role": "user", "content": "Hi"}
EMOJI = "😀"  # three tokens of SmolLM2: two bytes, one, one


def run(text: TextModel, says: Says, test: Callable[[Served], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with serving(text, says) as served:
            await test(served)

    asyncio.run(whole())


def ended(text: TextModel, said: str) -> Said:
    """With the model's own end."""
    return [*text.tokenizer.encode(said, add_special_tokens=False), END], FinishReason.STOP


def cut(text: TextModel, said: str) -> Said:
    """By max_tokens."""
    return text.tokenizer.encode(said, add_special_tokens=False), FinishReason.LENGTH


def always(said: Said) -> Says:
    return lambda _expect, _sample: said


def texts(events: list[dict[str, Any]], index: int = 0) -> list[str]:
    choices = [choice for event in events for choice in event["choices"]]
    return [choice["text"] for choice in choices if choice["index"] == index]


def test_a_completion_whole_and_streamed(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        body = await served.complete()
        (choice,) = body["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("Hello there", "stop")
        assert body["usage"] == {
            "prompt_tokens": 1,
            "completion_tokens": 3,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": CACHED_TOKENS},
        }
        events = await served.events(stream_options={"include_usage": True})
        assert texts(events) == ["Hello", " there", ""]
        assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == [None, None, "stop"]
        assert [event["usage"] for event in events] == [None, None, None, body["usage"]]
        assert len({event["id"] for event in events}) == 1

    run(smollm2, always(ended(smollm2, "Hello there")), test)


def test_a_chat_whole_and_streamed(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        response = await served.post("/v1/chat/completions", messages=[USER])
        (choice,) = response.json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Hello there", "stop")
        assert response.headers["x-request-id"] == response.json()["id"]
        events = await served.events("/v1/chat/completions", messages=[USER])
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas == [
            {"role": "assistant", "content": ""},
            {"content": "Hello"},
            {"content": " there"},
            {},
        ]

    run(smollm2, always(ended(smollm2, "Hello there")), test)


def test_part_of_a_character_is_held_back_and_its_token_told_at_once(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        assert texts(await served.events()) == ["a", "", "", EMOJI, "b"]
        events = await served.events("/v1/chat/completions", messages=[USER])
        said = [event["choices"][0]["delta"]["content"] for event in events]
        assert said == ["", "a", "", "", EMOJI, "b"]

    run(smollm2, always(cut(smollm2, f"a{EMOJI}b")), test)


def test_a_character_that_is_never_whole_shows_in_the_end(smollm2: TextModel) -> None:
    tokens, _ = cut(smollm2, f"a{EMOJI}")

    async def test(served: Served) -> None:
        assert texts(await served.events()) == ["a", "", "\ufffd"]

    run(smollm2, always((tokens[:-1], FinishReason.LENGTH)), test)


def test_a_stop_string_never_leaks_and_ends_the_work(smollm2: TextModel) -> None:
    said = cut(smollm2, "one two three four five six seven eight nine ten")

    async def test(served: Served) -> None:
        events = await served.events(stop=["ree fou"], stream_options={"include_usage": True})
        assert "".join(texts(events)) == "one two th"
        last = events[-2]["choices"][0]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", "ree fou")
        assert events[-1]["usage"]["completion_tokens"] == 4  # to where the text ended
        await asyncio.wait_for(served.worker.ended.wait(), 5)

    run(smollm2, always(said), test)


def test_what_began_like_a_stop_string_is_given_out(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        events = await served.events(stop=["two three five"])
        assert texts(events) == ["one", " ", "", "two three four"]

    run(smollm2, always(cut(smollm2, "one two three four")), test)


def test_a_stop_string_may_be_shown(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        body = await served.complete(stop="two", include_stop_str_in_output=True)
        assert body["choices"][0]["text"] == "one two"

    run(smollm2, always(cut(smollm2, "one two three")), test)


def test_stop_strings_wait_for_min_tokens(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        body = await served.complete(stop="two", min_tokens=3)
        assert body["choices"][0]["text"] == "two two two "
        assert body["usage"]["completion_tokens"] == 4

    run(smollm2, always(cut(smollm2, "two two two two two")), test)


def test_a_stop_token_is_named_and_not_shown(smollm2: TextModel) -> None:
    tokens, _ = cut(smollm2, "one two")

    async def test(served: Served) -> None:
        body = await served.complete(stop_token_ids=[tokens[-1]])
        choice = body["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("one", "stop")
        assert (choice["stop_reason"], body["usage"]["completion_tokens"]) == (tokens[-1], 2)

    run(smollm2, always((tokens, FinishReason.STOP)), test)


def test_special_tokens_can_be_shown(smollm2: TextModel) -> None:
    said = [1, *cut(smollm2, "a")[0]], FinishReason.LENGTH

    async def test(served: Served) -> None:
        hidden = await served.complete()
        shown = await served.complete(skip_special_tokens=False)
        assert hidden["choices"][0]["text"] == "a"
        assert shown["choices"][0]["text"] == "<|im_start|>a"

    run(smollm2, always(said), test)


def test_samples_and_prompts_each_have_their_choice(smollm2: TextModel) -> None:
    names = {81: "first", 82: "second"}

    def says(expect: Any, sample: int) -> Said:  # noqa: ANN401
        return cut(smollm2, f"{names[expect.prompt[0]]} {sample}" + " and so on" * (1 - sample))

    async def test(served: Served) -> None:
        wanted = ["first 0 and so on", "first 1", "second 0 and so on", "second 1"]
        body = await served.complete(prompt=["a", "b"], n=2)
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
        assert [choice["text"] for choice in body["choices"]] == wanted
        assert body["usage"]["prompt_tokens"] == 2
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * CACHED_TOKENS
        events = await served.events(prompt=["a", "b"], n=2)
        assert ["".join(texts(events, n)) for n in range(4)] == wanted

    run(smollm2, says, test)


def test_an_echo_comes_first_in_every_choice(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        body = await served.complete(prompt="one two", echo=True, n=2)
        assert [c["text"] for c in body["choices"]] == ["one two three", "one two three"]
        events = await served.events(prompt="one two", echo=True)
        assert texts(events) == ["one two", " three"]
        assert (await served.complete(prompt=[81, 82], echo=True))["choices"][0]["text"] == (
            "ab three"
        )

    run(smollm2, always(cut(smollm2, " three")), test)


@pytest.mark.parametrize("prompt", ["one two", [537, 827]])
def test_an_echo_with_logprobs(smollm2: TextModel, prompt: Any) -> None:  # noqa: ANN401
    assert smollm2.tokenizer.encode("one two", add_special_tokens=True) == [537, 827]

    async def test(served: Served) -> None:
        body = await served.complete(prompt=prompt, echo=True, logprobs=1)
        assert body["choices"][0]["logprobs"] == {
            "tokens": ["one", " two", " three", "!"],
            "token_logprobs": [None, -0.25, -0.25, -0.25],
            "top_logprobs": [None, {" two": -0.25}, {" three": -0.25}, {"!": -0.25}],
            "text_offset": [0, 3, 7, 13],
        }

    run(smollm2, always(cut(smollm2, " three!")), test)


def test_offsets_of_an_echo_go_by_whole_characters(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        body = await served.complete(prompt=f"a{EMOJI}b", echo=True, logprobs=0)
        choice = body["choices"][0]
        scores = choice["logprobs"]
        assert choice["text"] == f"a{EMOJI}bc"
        assert scores["text_offset"] == [0, 1, 1, 1, 2, 3]
        assert scores["tokens"] == ["a", "\ufffd", "\ufffd", "\ufffd", "b", "c"]

    run(smollm2, always(cut(smollm2, "c")), test)


def test_an_echo_alone_counts_no_output(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        body = await served.complete(prompt="one two", echo=True, max_tokens=0, logprobs=1)
        choice = body["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("one two", "length")
        assert choice["logprobs"]["token_logprobs"] == [None, -0.25]
        assert body["usage"]["completion_tokens"] == 0

    run(smollm2, always(cut(smollm2, " three")), test)


def test_token_ids_are_those_that_are_counted(smollm2: TextModel) -> None:
    tokens, _ = said = cut(smollm2, "one two three four")

    async def test(served: Served) -> None:
        body = await served.complete(return_token_ids=True, stop="three")
        assert body["choices"][0]["token_ids"] == list(tokens[:3])
        assert body["choices"][0]["prompt_token_ids"] == [81]

    run(smollm2, always(said), test)


def test_what_the_worker_is_told(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        drawing = {"temperature": 0.5, "top_k": 3, "min_tokens": 1, "ignore_eos": True}
        await served.complete(seed=7, n=3, priority=-2, **drawing)
        (expect,) = served.worker.seen
        assert (expect.prompt, len(expect.samples), expect.priority) == ((81,), 3, -2)
        params = expect.params
        assert (params.seed, params.temperature, params.top_k) == (7, 0.5, 3)
        assert (params.min_tokens, params.end_token_ids) == (1, ())

    run(smollm2, always(cut(smollm2, "b")), test)


def test_the_best_of_several_samples_are_told_and_all_are_counted(smollm2: TextModel) -> None:
    """Of those that are as likely the first."""
    said = [ended(smollm2, text) for text in ("one", "two three", "four")]

    async def test(served: Served) -> None:
        body = await served.complete(best_of=3, n=2, return_token_ids=True)
        choices = body["choices"]
        assert [(c["index"], c["text"]) for c in choices] == [(0, "one"), (1, "two three")]
        assert all(choice["logprobs"] is None for choice in choices)
        assert [choice["prompt_token_ids"] for choice in choices] == [[81], [81]]
        assert body["usage"]["completion_tokens"] == sum(len(tokens) for tokens, _ in said)
        (expect,) = served.worker.seen
        assert (len(expect.samples), expect.params.logprobs) == (3, 0)

    run(smollm2, lambda _expect, sample: said[sample], test)


def test_tokens_with_a_logprob_may_be_told_by_number(smollm2: TextModel) -> None:
    async def test(served: Served) -> None:
        asked: Any = {"return_tokens_as_token_ids": True, "return_token_ids": True}
        (whole,) = (await served.complete(prompt="a", logprobs=1, **asked))["choices"]
        names = [f"token_id:{token}" for token in whole["token_ids"]]
        assert whole["logprobs"]["tokens"] == names
        tops = whole["logprobs"]["top_logprobs"]
        assert all(name in top for name, top in zip(names, tops, strict=True))
        chat: Any = {"messages": [{"role": "user", "content": "a"}], "logprobs": True}
        response = await served.post("/v1/chat/completions", **chat, **asked)
        (choice,) = response.json()["choices"]
        told = [one["token"] for one in choice["logprobs"]["content"]]
        assert told == [f"token_id:{token}" for token in choice["token_ids"]]

    run(smollm2, always(ended(smollm2, "Hello there")), test)


def test_a_long_answer_is_what_its_events_say(smollm2: TextModel) -> None:
    """It is put together beside the loop."""
    said = (list(range(500, 600)), FinishReason.LENGTH)

    async def test(served: Served) -> None:
        asked: dict[str, Any] = {"n": 4, "logprobs": 5}
        whole = await served.complete(**asked)
        events = [e["choices"][0] for e in await served.events(**asked)]
        for choice in whole["choices"]:
            own = [one for one in events if one["index"] == choice["index"]]
            assert choice["text"] == "".join(one["text"] for one in own)
            assert len(own) == 100
            for name, values in choice["logprobs"].items():
                assert values == [value for one in own for value in one["logprobs"][name]]

    run(smollm2, always(said), test)
