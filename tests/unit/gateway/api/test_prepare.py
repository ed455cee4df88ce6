"""From a checked body to prompts and parameters, with the default model's text side."""

from dataclasses import replace
from typing import Any

import pytest

from common.errors import ClientError
from common.messages import SamplingParams
from common.text.load import TextModel
from common.text.model_defaults import GenerationDefaults
from launch.gateway.api.prepare import Prompt
from launch.gateway.api.requests import MAX_CHOICES
from launch.gateway.api.served import Served
from launch.gateway.transfers import Slo
from tests.unit.gateway.api.preparing import CAPITAL, USER, chat, completion, refused


def test_a_completion_with_nothing_said(served: Served) -> None:
    prepared = completion(served)
    assert prepared.prompts == (
        Prompt(
            ids=CAPITAL,
            text="The capital of France is",
            params=SamplingParams(max_tokens=16, seed=77, end_token_ids=(2,)),
        ),
    )
    assert (prepared.n, prepared.stream, prepared.echo, prepared.logprobs) == (
        1,
        False,
        False,
        None,
    )
    assert prepared.generates
    assert prepared.returned_prompts == ()


def test_a_completion_with_all_said(served: Served) -> None:
    prepared = completion(
        served,
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=5,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"7": 1, "3": -2.5},
        min_tokens=2,
        ignore_eos=True,
        stop_token_ids=[9],
        logprobs=3,
        echo=True,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        return_token_ids=True,
    )
    assert prepared.prompts[0].params == SamplingParams(
        max_tokens=9,
        seed=5,
        temperature=0.0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias=((3, -2.5), (7, 1.0)),
        min_tokens=2,
        end_token_ids=(),
        stop_token_ids=(9,),
        logprobs=3,
        prompt_logprobs=3,
    )
    assert prepared.include_usage
    assert prepared.returned_prompts == (CAPITAL, CAPITAL)


def test_who_salts_a_prompt_shares_no_pages_with_others(served: Served) -> None:
    assert completion(served).salt == ""
    assert completion(served, cache_salt="mine").salt == "mine"
    assert chat(served, cache_salt="mine").salt == "mine"


def test_an_echo_and_the_prompts_logprobs_are_of_one_computation(served: Served) -> None:
    prepared = completion(served, echo=True, logprobs=1, prompt_logprobs=3)
    assert (prepared.logprobs, prepared.prompt_logprobs) == (1, 3)
    assert prepared.prompts[0].params.prompt_logprobs == 3
    assert prepared.prompts[0].params.logprobs == 1


def test_prompts_of_one_request_draw_by_themselves_the_first_as_if_alone(served: Served) -> None:
    seeds = [one.params.seed for one in completion(served, prompt=["a", "a", "a"], seed=5).prompts]
    assert seeds[0] == 5
    assert len(set(seeds)) == 3
    again = completion(served, prompt=["a", "a", "a"], seed=5).prompts
    assert [one.params.seed for one in again] == seeds


def test_negative_seeds_are_seeds(served: Served) -> None:
    assert completion(served, seed=-1).prompts[0].params.seed == 2**63 - 1


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": []}, "prompt", "prompt is an empty list; give at least one"),
        ({"prompt": ""}, "prompt", "a prompt has no tokens; give at least one"),
        ({"prompt": [[]]}, "prompt", "a prompt has no tokens; give at least one"),
        (
            {"prompt": ["a", 1]},
            "prompt",
            "prompt mixes kinds; give a text, a list of texts, a list of token ids or a list of "
            "such lists",
        ),
        (
            {"prompt": [5, 49152]},
            "prompt",
            "token id 49152 at position 1 is out of range: this model's ids are 0 to 49151",
        ),
        (
            {"stop_token_ids": [50000]},
            "stop_token_ids",
            "token id 50000 at position 0 is out of range: this model's ids are 0 to 49151",
        ),
        (
            {"logit_bias": {"49152": 1}},
            "logit_bias",
            'logit_bias has the key "49152"; keys are token ids, 0 to 49151',
        ),
        (
            {"logit_bias": {"x": 1}},
            "logit_bias",
            'logit_bias has the key "x"; keys are token ids, 0 to 49151',
        ),
        (
            {"max_tokens": 96},
            "max_tokens",
            "This model's maximum context length is 100 tokens, but 5 tokens of prompt and 96 of "
            "output were asked for (101 in all). Shorten the prompt or lower max_tokens.",
        ),
        (
            {"prompt_logprobs": 1, "stream": True},
            "prompt_logprobs",
            "prompt_logprobs is not told in a stream; leave stream out",
        ),
        (
            {"prompt_logprobs": 6},
            "prompt_logprobs",
            "prompt_logprobs is 6; at most 5 (--max-logprobs)",
        ),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0: nothing is left to do without echo"),
        (
            {"max_tokens": 3, "min_tokens": 4},
            "min_tokens",
            "min_tokens is 4, but max_tokens is 3",
        ),
        ({"logprobs": 6}, "logprobs", "logprobs is 6; at most 5 (--max-logprobs)"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options",
            "stream_options needs stream to be true",
        ),
        (
            {"best_of": 3, "stream": True},
            "best_of",
            "best_of is 3 and n 1: which are the best is known in the end, so they cannot be "
            "streamed; leave stream out",
        ),
        (
            {"best_of": 2, "n": 3},
            "best_of",
            "best_of is 2 and n 3: so many cannot be chosen of it; ask for 3 or more",
        ),
        (
            {"prompt": ["a"] * 9, "best_of": 128},
            "prompt",
            f"9 prompts with best_of 128 make 1152 choices; at most {MAX_CHOICES} in one request",
        ),
        ({"suffix": "z"}, "suffix", "suffix is not supported: this model cannot infill"),
        (
            {"prompt": ["a"] * 9, "n": 128},
            "prompt",
            f"9 prompts with n 128 make 1152 choices; at most {MAX_CHOICES} in one request",
        ),
    ],
)
def test_what_a_completion_cannot_ask(
    served: Served, fields: dict[str, Any], param: str, message: str
) -> None:
    assert refused(served, **fields) == (param, message)


def test_more_samples_are_drawn_and_scored_than_are_told(served: Served) -> None:
    prepared = completion(served, n=2, best_of=5, return_token_ids=True)
    assert (prepared.n, prepared.n_told, len(prepared.returned_prompts)) == (5, 2, 2)
    assert (prepared.scores, prepared.logprobs) == (True, None)
    assert prepared.prompts[0].params.logprobs == 0
    told = completion(served, n=2, best_of=5, logprobs=3)
    assert (told.logprobs, told.prompts[0].params.logprobs) == (3, 3)
    as_many = completion(served, n=2, best_of=2, stream=True)
    assert (as_many.n, as_many.scores, as_many.prompts[0].params.logprobs) == (2, False, None)


def test_a_priority_is_told(served: Served) -> None:
    assert completion(served, priority=-3).priority == chat(served, priority=-3).priority == -3
    assert completion(served).priority == 0


def test_a_bias_key_of_many_digits_is_refused_and_not_read(served: Served) -> None:
    param, message = refused(served, logit_bias={"1" * 5000: 1})
    assert param == "logit_bias"
    assert message.startswith('logit_bias has the key "1111')


def test_another_model_is_not_there(served: Served) -> None:
    with pytest.raises(ClientError) as raised:
        completion(served, model="gpt-4")
    assert (raised.value.status, raised.value.param) == (404, "model")
    assert str(raised.value) == "The model `gpt-4` does not exist; this server has `tiny`."
    assert completion(served, model="tiny").n == 1


def test_echo_alone(served: Served) -> None:
    prepared = completion(served, max_tokens=0, echo=True, logprobs=1)
    assert (prepared.generates, prepared.prompts[0].params.max_tokens) == (False, 1)
    assert prepared.prompts[0].params.prompt_logprobs == 1


# --- chats -----------------------------------------------------------------------------------


def test_a_chat_with_nothing_said_may_fill_the_context(served: Served) -> None:
    prepared = chat(served)
    prompt = prepared.prompts[0]
    assert prompt.ids[:2] == (1, 9690)  # <|im_start|>system
    assert prompt.params.max_tokens == 100 - len(prompt.ids)
    assert prompt.params.logprobs is None


def test_the_newer_name_of_max_tokens_wins(served: Served) -> None:
    assert chat(served, max_tokens=3, max_completion_tokens=7).prompts[0].params.max_tokens == 7


def test_logprobs_of_a_chat(served: Served) -> None:
    assert chat(served, logprobs=True).prompts[0].params.logprobs == 0
    assert chat(served, logprobs=True, top_logprobs=2).prompts[0].params.logprobs == 2


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": []}, "messages", "messages is empty; give at least one"),
        (
            {"messages": [USER, {"content": "Hi"}]},
            "messages[1].role",
            "messages[1].role is null; it must be a name such as user",
        ),
        (
            {"messages": [{"role": 5, "content": "Hi"}]},
            "messages[0].role",
            "messages[0].role is 5; it must be a name such as user",
        ),
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content",
            "messages[0].content is null; it must be a text or a list of parts",
        ),
        (
            {"messages": [{"role": "user", "content": {"text": "Hi"}}]},
            "messages[0].content",
            'messages[0].content is {"text":"Hi"}; it must be a text or a list of parts',
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "messages[0].content has a part of type 'image_url'; only text parts are supported",
        ),
        (
            {"messages": [USER], "max_tokens": 0},
            "max_tokens",
            "max_tokens: Expected `int` >= 1, got 0",
        ),
        (
            {"messages": [USER], "top_logprobs": 1},
            "top_logprobs",
            "top_logprobs needs logprobs to be true",
        ),
        (
            {"messages": [USER], "logprobs": True, "top_logprobs": 6},
            "top_logprobs",
            "top_logprobs is 6; at most 5 (--max-logprobs)",
        ),
        (
            {"messages": [USER], "audio": {"voice": "x"}},
            "audio",
            "audio is not supported by this server; answers are text; leave it out",
        ),
        (
            {"messages": [USER], "modalities": ["audio"]},
            "modalities",
            "modalities is not supported by this server; answers are text; leave it out, or say "
            '["text"]',
        ),
        (
            {"messages": [USER], "chat_template_kwargs": {"messages": []}},
            "chat_template_kwargs",
            "['messages'] cannot be set among a template's options",
        ),
    ],
)
def test_what_a_chat_cannot_ask(
    served: Served, fields: dict[str, Any], param: str, message: str
) -> None:
    assert refused(served, **fields) == (param, message)


def test_what_is_done_anyway_may_be_asked_for(served: Served) -> None:
    asked = chat(
        served, tools=[], tool_choice="auto", response_format={"type": "text"}, modalities=["text"]
    )
    assert asked.prompts[0].ids == chat(served).prompts[0].ids


def test_the_models_own_defaults_apply_where_the_request_is_silent(
    served: Served, smollm2: TextModel
) -> None:
    own = GenerationDefaults(temperature=0.6, top_k=20, top_p=0.9, max_tokens=11)
    with_own = replace(served, text=replace(smollm2, generation_defaults=own))
    silent = chat(with_own).prompts[0].params
    assert (silent.temperature, silent.top_k, silent.top_p) == (0.6, 20, 0.9)
    assert silent.max_tokens == 11
    spoken = chat(with_own, temperature=0, top_k=-1, max_tokens=12).prompts[0].params
    assert (spoken.temperature, spoken.top_k, spoken.max_tokens) == (0.0, 0, 12)


def test_an_slo_is_the_requests_else_the_servers(served: Served) -> None:
    owed = Slo(ttft_s=0.5, tpot_s=0.05)
    own = replace(served, slo=owed)
    assert completion(served).slo == Slo()
    assert completion(own).slo == chat(own).slo == completion(own, slo={}).slo == owed
    assert completion(own, slo={"ttft_ms": None, "tpot_ms": None}).slo == owed
    asked = chat(own, slo={"ttft_ms": 200}, timeout_s=1.5)
    assert asked.slo == Slo(ttft_s=0.2, tpot_s=0.05)
    assert asked.timeout_s == 1.5
    assert completion(served, slo={"tpot_ms": 20}).slo == Slo(tpot_s=0.02)
    a_day = {"ttft_ms": 86_400_000, "tpot_ms": 86_400_000}
    assert completion(own, slo=a_day).slo == Slo()


def test_of_allowed_tools_alone_one_is_called(served: Served) -> None:
    def tool(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name}}

    chosen = {"mode": "required", "tools": [tool("b"), tool("b")]}
    choice = {"type": "allowed_tools", "allowed_tools": chosen}
    called = chat(served, tools=[tool("a"), tool("b")], tool_choice=choice).calling
    alone = chat(served, tools=[tool("b")], tool_choice="required").calling
    assert called is not None
    assert alone is not None
    assert (called.offered, called.grammar) == ([tool("b")], alone.grammar)
