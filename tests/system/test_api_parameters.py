"""Each parameter of completions does what it says, with the official client in each of its ways."""

from pathlib import Path

import pytest

from common.text.load import TextModel, load_text_model
from common.text.token_rules import spellings
from tests.servers import RunningServer
from tests.system.asking import MODES, STORY, Answer, Asker, Mode, N

pytestmark = pytest.mark.slow


@pytest.fixture(params=MODES)
def ask(server: RunningServer, request: pytest.FixtureRequest) -> Asker:
    mode: Mode = request.param
    return Asker(server, mode)


@pytest.fixture(scope="module")
def greedy(server: RunningServer) -> Answer:
    """What is likeliest, told with all that can be told of it."""
    return Asker(server, "sync").complete(logprobs=2, return_token_ids=True)


@pytest.fixture(scope="module")
def text(default_model: Path) -> TextModel:
    return load_text_model(default_model)


def test_lengths_and_what_they_cost(ask: Asker, greedy: Answer) -> None:
    answer = ask.complete()
    assert (answer.text, answer.only.finish) == (greedy.text, "length")
    assert answer.usage["completion_tokens"] == N
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + N
    assert ask.complete(max_tokens=2).usage["completion_tokens"] == 2


def test_prompts_of_every_kind(ask: Asker, greedy: Answer, text: TextModel) -> None:
    ids = text.tokenizer.encode(STORY, add_special_tokens=True)
    assert ask.complete(ids).text == greedy.text
    both = ask.complete([ids, ids[:3]], max_tokens=2)
    assert both.usage["prompt_tokens"] == len(ids) + 3
    assert [choice.text for choice in both.choices] == [
        choice.text for choice in ask.complete([STORY, "Once upon a"], max_tokens=2).choices
    ]


def test_what_is_drawn(ask: Asker, greedy: Answer) -> None:
    def drawn(**options: object) -> str:
        return ask.complete(temperature=1.5, **options).text

    assert drawn(seed=1) == drawn(seed=1) != drawn(seed=2)
    assert drawn(seed=1, top_p=1e-6) == greedy.text
    assert drawn(seed=1, top_k=1) == greedy.text
    assert drawn(seed=1, min_p=1.0) == greedy.text


def test_several_samples(ask: Asker) -> None:
    three = ask.complete(temperature=1.5, seed=4, n=3, max_tokens=4)
    assert len({choice.text for choice in three.choices}) == 3
    assert three.usage["completion_tokens"] == 12
    assert three.choices[0] == ask.complete(temperature=1.5, seed=4, max_tokens=4).only


def test_stops(ask: Asker, greedy: Answer) -> None:
    stop = greedy.text[4:9]
    cut = ask.complete(stop=[stop, "never said"]).only
    assert (cut.text, cut.finish, cut.stop_reason) == (
        greedy.text[: greedy.text.index(stop)],
        "stop",
        stop,
    )
    shown = ask.complete(stop=stop, include_stop_str_in_output=True)
    assert shown.text == cut.text + stop
    by_token = ask.complete(stop_token_ids=[greedy.only.tokens[2]])
    assert by_token.usage["completion_tokens"] == 3
    assert (by_token.only.finish, by_token.only.stop_reason) == ("stop", greedy.only.tokens[2])
    assert greedy.text.startswith(by_token.text)
    late = ask.complete(stop=stop, min_tokens=N)
    assert late.text == greedy.text


def test_biases_and_penalties(ask: Asker, greedy: Answer, text: TextModel) -> None:
    first = greedy.only.tokens[0]
    without = ask.complete(logit_bias={first: -100}, return_token_ids=True).only
    assert first not in without.tokens
    (cat,) = text.tokenizer.encode(" cat", add_special_tokens=False)
    (dog,) = text.tokenizer.encode(" dog", add_special_tokens=False)
    both = {str(cat): 100, str(dog): 100}

    def words(**options: object) -> set[str]:
        said = ask.complete(logit_bias=both, **options)
        assert set(said.text.split()) <= {"cat", "dog"}
        return set(said.text.split())

    alone = words()
    assert len(alone) == 1
    assert words(frequency_penalty=2, max_tokens=8) == {"cat", "dog"}
    assert words(presence_penalty=-2) == alone
    distinct = ask.complete(repetition_penalty=20, return_token_ids=True).only.tokens
    said_before = set(text.tokenizer.encode(STORY, add_special_tokens=True))
    assert len(set(distinct)) == N
    assert said_before.isdisjoint(distinct)


@pytest.mark.parametrize("mode", ["sync", "async stream"])
def test_what_answers_are_made_of(
    server: RunningServer, mode: Mode, greedy: Answer, text: TextModel
) -> None:
    """On the way: the first token is drawn by one worker, the others by another."""
    ask = Asker(server, mode)
    first, second, third, *_ = greedy.only.tokens
    word = text.tokenizer.text_of(second).strip()
    assert len(spellings(word, text.tokenizer)) == 2  # as it begins a text, and within one
    for choice in ask.complete(bad_words=[word], n=2).choices:
        assert word not in choice.text.split()
    pair = text.tokenizer.decode((second, third), skip_special_tokens=False)
    parted = ask.complete(bad_words=[pair], return_token_ids=True).only.tokens
    assert parted[:2] == (first, second)  # alone it may be said
    assert parted[2] != third
    few = ask.complete(allowed_token_ids=[first, 3575], temperature=1, return_token_ids=True)
    assert set(few.only.tokens) <= {first, 3575}
    form = {"choice": [" yes", " no"]}
    assert ask.complete(structured_outputs=form, bad_words=["yes"]).text == " no"


def test_ends_can_be_put_off(ask: Asker, text: TextModel) -> None:
    (end,) = text.end_token_ids
    bias = {str(end): 100}
    ended = ask.complete(logit_bias=bias)
    assert (ended.text, ended.only.finish, ended.usage["completion_tokens"]) == ("", "stop", 1)
    later = ask.complete(logit_bias=bias, min_tokens=3)
    assert (later.only.finish, later.usage["completion_tokens"]) == ("stop", 4)
    on = ask.complete(logit_bias=bias, ignore_eos=True, skip_special_tokens=False, max_tokens=2)
    assert (on.text, on.only.finish) == ("<|im_end|>" * 2, "length")


def test_log_probabilities(ask: Asker, greedy: Answer) -> None:
    told = ask.complete(logprobs=2, return_token_ids=True).only
    assert told == greedy.only
    assert len(told.logprobs) == len(told.tokens) == N
    assert all(value is not None and value <= 0 for value in told.logprobs)
    assert set(told.top) == {2}  # a greedy token is among the likeliest
    assert ask.complete().only.logprobs == ()


def test_echoes(ask: Asker, greedy: Answer) -> None:
    told = ask.complete(echo=True, logprobs=0).only
    assert told.text == STORY + greedy.text
    assert told.logprobs[0] is None
    assert told.logprobs[-N:] == greedy.only.logprobs


def test_truncated_prompts(ask: Asker, text: TextModel) -> None:
    cut = ask.complete(truncate_prompt_tokens=3)
    assert cut.usage["prompt_tokens"] == 3
    ids = text.tokenizer.encode(STORY, add_special_tokens=True)
    assert cut.text == ask.complete(ids[-3:]).text


def test_forms(ask: Asker) -> None:
    form = {"regex": r" [a-z]{2,5}\."}
    answer = ask.complete(structured_outputs=form, max_tokens=20)
    assert answer.text[0] == " "
    assert answer.text[-1] == "."
    assert answer.only.finish == "stop"
    chosen = ask.complete(structured_outputs={"choice": [" yes", " no"]})
    assert chosen.text in (" yes", " no")


def test_what_changes_no_answer(ask: Asker, greedy: Answer) -> None:
    told = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
    for options in (
        told,
        {"priority": -5},
        {"priority": 7},
        {"cache_salt": "tenant"},
        {"timeout_s": 60},
        {"slo": {"ttft_ms": 60_000, "tpot_ms": 10_000}},
        {"best_of": 1},
        {"prompt_cache_key": "k", "safety_identifier": "s"},
    ):
        assert ask.complete(**options).text == greedy.text, options


def test_the_best_of_several(server: RunningServer) -> None:
    """Of the samples that would be drawn anyway those whose tokens are likeliest."""
    for mode in ("sync", "async"):
        ask = Asker(server, mode)
        drawing = {"temperature": 1.5, "seed": 6, "max_tokens": 4, "logprobs": 0}
        every = ask.complete(n=5, **drawing).choices

        def mean(one: object) -> float:
            values = getattr(one, "logprobs", ())
            return sum(values) / len(values)

        ranked = sorted(every, key=mean, reverse=True)
        best = ask.complete(best_of=5, n=2, **drawing)
        assert list(best.choices) == ranked[:2]
        assert best.usage["completion_tokens"] == 20
        del drawing["logprobs"]
        silent = ask.complete(best_of=5, **drawing)
        assert (silent.text, silent.only.logprobs) == (ranked[0].text, ())


def test_the_prompts_own_log_probabilities(server: RunningServer, text: TextModel) -> None:
    for mode in ("sync", "async"):
        events = Asker(server, mode).events(
            "completions", {"prompt": STORY, "max_tokens": 1, "prompt_logprobs": 1}
        )
        told = events[0]["choices"][0]["prompt_logprobs"]
        ids = text.tokenizer.encode(STORY, add_special_tokens=True)
        assert told[0] is None
        assert all(str(token) in one for token, one in zip(ids[1:], told[1:], strict=True))


@pytest.mark.parametrize("mode", ["sync stream", "async stream"])
def test_what_is_told_of_usage_in_a_stream(server: RunningServer, mode: Mode) -> None:
    ask = Asker(server, mode)
    options = {"prompt": STORY, "max_tokens": 3, "temperature": 0}
    quiet = ask.events("completions", {**options, "stream_options": {}})
    assert not any(event.get("usage") for event in quiet)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    told = ask.events("completions", {**options, "stream_options": usage})
    counts = [event["usage"]["completion_tokens"] for event in told]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 3)
