"""The API with the official client, a real model behind it."""

import threading
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Completion

from common.text.load import TextModel, load_text_model
from tests.api_client import metrics, until
from tests.servers import RunningServer

pytestmark = pytest.mark.slow
MODEL = "smollm2"
N = 8  # tokens of an answer, unless a test needs more
STORY = "Once upon a time, there was a little girl who"
USER: Any = [{"role": "user", "content": "Name three colours 🎨 and say why."}]


@pytest.fixture(scope="module")
def text(default_model: Path) -> TextModel:
    return load_text_model(default_model)


def complete(client: openai.OpenAI, prompt: Any = STORY, **options: Any) -> Completion:  # noqa: ANN401
    asked = {"temperature": 0, "max_tokens": N, **options}
    answer = client.completions.create(model=MODEL, prompt=prompt, **asked)
    assert isinstance(answer, Completion)
    return answer


def streamed(client: openai.OpenAI, prompt: Any = STORY, **options: Any) -> list[Completion]:  # noqa: ANN401
    asked = {"temperature": 0, "max_tokens": N, **options}
    with client.completions.create(model=MODEL, prompt=prompt, stream=True, **asked) as stream:
        return list(stream)


def test_a_completion_whole_and_streamed_is_the_same(client: openai.OpenAI) -> None:
    whole = complete(client)
    events = streamed(client, stream_options={"include_usage": True})
    assert len(whole.choices[0].text) > 2 * N
    assert "".join(c.text for e in events for c in e.choices) == whole.choices[0].text
    assert len(events) > N
    assert whole.usage is not None
    assert events[-1].usage is not None
    assert whole.usage.completion_tokens == events[-1].usage.completion_tokens == N
    assert whole.choices[0].finish_reason == events[-2].choices[0].finish_reason == "length"


def test_a_chat_whole_and_streamed_is_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model=MODEL, messages=USER, temperature=0, max_tokens=N, logprobs=True, top_logprobs=2
    )
    content = whole.choices[0].message.content
    scores = whole.choices[0].logprobs
    assert content is not None
    assert scores is not None
    assert scores.content is not None
    assert (
        b"".join(bytes(token.bytes or ()) for token in scores.content).decode("utf-8", "replace")
        == content
    )
    for token in scores.content:
        best, second = token.top_logprobs
        assert (best.token, best.logprob) == (token.token, token.logprob)
        assert 0 >= best.logprob >= second.logprob
    with client.chat.completions.create(
        model=MODEL, messages=USER, temperature=0, max_tokens=N, stream=True
    ) as stream:
        deltas = [choice.delta for chunk in stream for choice in chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == content


def test_seeds(client: openai.OpenAI) -> None:
    def drawn(seed: int, **options: Any) -> list[str]:  # noqa: ANN401
        answer = complete(client, temperature=1, seed=seed, **options)
        return [choice.text for choice in answer.choices]

    three = drawn(1, n=3)
    assert len(set(three)) == 3
    assert drawn(1) == three[:1]
    assert drawn(1, n=3) == three
    assert drawn(2) != three[:1]
    assert drawn(2, top_p=1e-6) == drawn(3, extra_body={"top_k": 1})


def test_kinds_of_prompts_agree(client: openai.OpenAI, text: TextModel) -> None:
    ids = text.tokenizer.encode(STORY, add_special_tokens=True)
    alone = complete(client).choices[0].text
    assert complete(client, ids).choices[0].text == alone
    both = complete(client, [ids, ids[:3]])
    assert both.choices[0].text == alone
    assert both.choices[1].text == complete(client, [ids[:3]]).choices[0].text
    assert both.usage is not None
    assert both.usage.prompt_tokens == len(ids) + 3


def test_an_echo_scores_the_prompt_as_drawing_did(client: openai.OpenAI, text: TextModel) -> None:
    ids = text.tokenizer.encode(STORY, add_special_tokens=True)
    drawn = complete(client, ids, logprobs=0, extra_body={"return_token_ids": True})
    tokens: list[int] = drawn.choices[0].token_ids  # type: ignore[attr-defined] - vLLM's
    echoed = complete(client, ids + tokens, echo=True, logprobs=0, max_tokens=0).choices[0]
    first, again = drawn.choices[0].logprobs, echoed.logprobs
    assert first is not None
    assert again is not None
    assert again.token_logprobs is not None
    assert again.token_logprobs[len(ids) :] == first.token_logprobs  # float32: bit for bit
    assert echoed.text == STORY + drawn.choices[0].text
    assert again.text_offset is not None
    assert again.text_offset[len(ids)] == len(STORY)


def test_the_prompts_logprobs_are_those_of_its_echo(client: openai.OpenAI) -> None:
    asked = {"prompt_logprobs": 2, "return_token_ids": True}
    both: Any = complete(client, echo=True, logprobs=0, extra_body=asked).choices[0]
    first, *rest = both.prompt_logprobs
    assert first is None
    assert both.logprobs.token_logprobs[0] is None
    for token, told, echoed in zip(
        both.prompt_token_ids[1:], rest, both.logprobs.token_logprobs[1:], strict=False
    ):
        assert told[str(token)]["logprob"] == echoed
        assert 2 <= len(told) <= 3
        assert {1, 2} <= {one["rank"] for one in told.values()}
    alone: Any = complete(client, extra_body={"prompt_logprobs": 2}).choices[0]
    assert alone.prompt_logprobs == both.prompt_logprobs
    assert alone.logprobs is None


def test_salted_prompts_share_no_pages(client: openai.OpenAI) -> None:
    prompt = [(11 * n) % 40_000 + 500 for n in range(40)]

    def cached(salt: str) -> int:
        usage: Any = complete(client, prompt, max_tokens=1, extra_body={"cache_salt": salt}).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    assert [cached("a"), cached("b"), cached("a")] == [0, 0, 32]


def test_a_final_message_is_continued(client: openai.OpenAI) -> None:
    """Its text and what follows are what the model would have said by itself."""

    def said(*more: Any, n: int, **extra: Any) -> str:  # noqa: ANN401
        answer = client.chat.completions.create(
            model=MODEL, messages=[*USER, *more], temperature=0, max_tokens=n, extra_body=extra
        )
        return answer.choices[0].message.content or ""

    whole = said(n=12)
    begun = said(n=6)
    on = {"continue_final_message": True, "add_generation_prompt": False}
    assert begun + said({"role": "assistant", "content": begun}, n=6, **on) == whole


def test_the_end_can_be_put_off(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Say only: hi"}]

    def ask(**extra: Any) -> Any:  # noqa: ANN401
        return client.chat.completions.create(
            model=MODEL, messages=messages, temperature=0, max_tokens=24, extra_body=extra
        )

    short = ask()
    assert short.choices[0].finish_reason == "stop"
    n_short = short.usage.completion_tokens
    assert n_short < 24
    assert ask(min_tokens=n_short + 3).usage.completion_tokens >= n_short + 3
    longer = ask(ignore_eos=True)
    assert (longer.choices[0].finish_reason, longer.usage.completion_tokens) == ("length", 24)


def test_a_stop_string_cuts_the_text_and_the_count(client: openai.OpenAI) -> None:
    whole = complete(client, max_tokens=12).choices[0].text
    stop = whole[12:18]
    cut = complete(client, stop=[stop], max_tokens=12)
    assert cut.choices[0].text == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage is not None
    assert cut.usage.completion_tokens < 12
    events = streamed(client, stop=stop, max_tokens=12)
    assert "".join(c.text for e in events for c in e.choices) == cut.choices[0].text


def test_what_was_computed_before_is_counted_as_cached(client: openai.OpenAI) -> None:
    prompt = [(7 * n) % 40_000 + 500 for n in range(100)]

    def cached() -> int | None:
        usage = complete(client, prompt, max_tokens=1).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens

    assert cached() == 0
    assert cached() == 96  # all full pages of 16


def test_a_prompt_that_does_not_fit(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        complete(client, [5] * 1020, max_tokens=5)
    assert "context length is 1024 tokens, but 1020 tokens of prompt and 5 of output" in str(
        raised.value
    )


def test_many_at_once_are_as_they_are_alone(client: openai.OpenAI) -> None:
    prompts = [f"{n}. {STORY} {'🙂 ' * n}" for n in range(4)]
    alone = [complete(client, prompt, max_tokens=5).choices[0].text for prompt in prompts]
    together: dict[int, str] = {}

    def ask(n: int) -> None:
        events = streamed(client, prompts[n], max_tokens=5)
        together[n] = "".join(c.text for e in events for c in e.choices)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[n] for n in range(4)] == alone


def test_metrics_of_both_sides(server: RunningServer, client: openai.OpenAI) -> None:
    complete(client, [9, 8, 7] * 20, max_tokens=3)

    def total(name: str) -> tuple[float, float]:
        now = metrics(server.url)
        return now.total(name, "prefill"), now.total(name, "decode")

    until(lambda: all(total("engine_steps_total")), "both sides have computed")
    until(lambda: total("kv_pull_bytes_total")[1] > 0, "pages were pulled by the decode side")
    assert total("kv_pulls_total")[0] == 0
    assert total("prefix_cache_queries_total")[0] >= 60
    assert all(value > 1e7 for value in total("process_resident_memory_bytes"))
    assert all(value > 0 for value in total("process_cpu_seconds_total"))


def test_the_server_says_where_it_is_last_and_once(server: RunningServer) -> None:
    lines = [line for line in server.log().splitlines() if "process=gateway" in line]
    (ready,) = (n for n, line in enumerate(lines) if "event=ready" in line)
    assert f"url={server.url} model=smollm2" in lines[ready]
    assert "kv_tokens=" in server.log()
    assert "uvicorn" not in server.log().lower()
    assert "Started server" not in server.log()
