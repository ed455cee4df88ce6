"""One model, many ways through the pools: the answers are transformers', and the same to the bit.

Eight servers cover every pair of settings. All prompts are asked at once, over HTTP, in float32.
What the first of them says is held against the oracle; the others must say the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest

from common.text.load import TextModel, load_text_model
from tests.api_client import Answer, Body, alone, at_once, metrics, run, until
from tests.covering import Settings, covering
from tests.oracle import Oracle, Verdict, check
from tests.prompts import LONGEST_TOKENS, prompts
from tests.servers import RunningServer, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

N_OUT = 64
MAX_MODEL_LEN = f"--max-model-len={LONGEST_TOKENS + N_OUT}"
N_OUT_SEEDED = 24
N_OUT_TOP_1 = 16
N_SHORT = 40
SEEDS = {"question": 1, "Japanese": 2, "17 tokens": 3, "one token": 2**40}
TOP_1 = ("Greek", "chat with system")
CHAT = [
    {"role": "system", "content": "You are a terse assistant. Answer in one sentence."},
    {"role": "user", "content": "Why is the sky blue?"},
]


def test_every_pair_of_settings_is_covered() -> None:
    rows = [(s.pools, s.transport, s.caching, s.chunk_tokens, s.ample) for s in covering()]
    for i, j in combinations(range(5), 2):
        pairs = {(row[i], row[j]) for row in rows}
        assert len(pairs) == len({a for a, _ in pairs}) * len({b for _, b in pairs})
    assert [len(set(column)) for column in zip(*rows, strict=True)] == [4, 2, 2, 2, 2]


@dataclass
class Truth:
    """The questions; and the answers, once the oracle has approved of them."""

    model: TextModel
    prompts: Mapping[str, tuple[int, ...]]
    answers: dict[str, Answer] = field(default_factory=dict[str, Answer])
    preempted: float = 0.0  # by all servers

    def bodies(self) -> dict[str, Body]:
        asked: dict[str, Body] = {
            name: {"prompt": ids, "temperature": 0} for name, ids in self.prompts.items()
        }
        for name in TOP_1:
            asked[f"{name}, top 1"] = {
                "prompt": self.prompts[name],
                "max_tokens": N_OUT_TOP_1,
                "temperature": 1.5,
                "top_k": 1,
            }
        asked |= self.seeded()
        return {name: {**COMMON, **body} for name, body in asked.items()}

    def seeded(self) -> dict[str, Body]:
        return {
            f"{name}, seed {seed}": {
                **COMMON,
                "prompt": self.prompts[name],
                "max_tokens": N_OUT_SEEDED,
                "temperature": 0.9,
                "seed": seed,
            }
            for name, seed in SEEDS.items()
        }

    def approve(self, oracle: Oracle, answers: Mapping[str, Answer]) -> None:
        greedy = {name: answers[name].tokens for name in self.prompts}
        assert {len(tokens) for tokens in greedy.values()} == {N_OUT}
        check(oracle, self.prompts, greedy)
        self.answers = dict(answers)


COMMON: Body = {"max_tokens": N_OUT, "ignore_eos": True, "logprobs": 0}


@pytest.fixture(scope="module")
def oracle(default_model: Path) -> Oracle:
    return Oracle(default_model)


@pytest.fixture(scope="module")
def truth(default_model: Path) -> Truth:
    model = load_text_model(default_model)
    return Truth(model, prompts(model))


def test_one_pass_over_an_answer_judges_it_as_generating_does(oracle: Oracle, truth: Truth) -> None:
    prompt = truth.prompts["chat with system"]
    answer = oracle.generate(prompt, 32)
    assert oracle.judge(prompt, answer) == Verdict(n_tokens=32, n_ties=0)
    wanted, answer[20] = answer[20], answer[20] + 1
    verdict = oracle.judge(prompt, answer)
    assert (verdict.differs_at, verdict.wanted) == (20, wanted)


@pytest.mark.parametrize("settings", covering(), ids=str)
def test_answers_are_the_oracles_whatever_the_path(
    default_model: Path, oracle: Oracle, truth: Truth, settings: Settings
) -> None:
    with serving(default_model, *settings.flags(), MAX_MODEL_LEN) as server:
        until(lambda: "event=ready" in server.log(), "all workers up")
        if not settings.ample:
            teach_brevity(server, truth.model)
        answers = at_once(server.url, truth.bodies())
        truth.preempted += preemptions(server)
        if not truth.answers:
            truth.approve(oracle, answers)
            check_alone(server, truth)
    assert_same(answers, truth.answers)
    assert_top_1_is_greedy(answers)


def test_some_of_them_were_short_of_pages(truth: Truth) -> None:
    """Which server is, depends on when its requests come together."""
    if not truth.answers:
        pytest.skip("after the servers that are to be short of them")
    assert truth.preempted > 0


def teach_brevity(server: RunningServer, model: TextModel) -> None:
    """Let so many answers end after two tokens that this is what decode expects of the next ones,
    and lets in more of them than can go on to the end of what they may say."""
    (end,) = model.end_token_ids
    short = {
        "prompt": [504],
        "max_tokens": N_OUT,
        "min_tokens": 1,
        "temperature": 0,
        "logit_bias": {end: 100},
    }
    answers = at_once(server.url, {str(n): short for n in range(N_SHORT)})
    assert {answer.finish for answer in answers.values()} == {"stop"}
    assert {len(answer.tokens) for answer in answers.values()} == {2}


def preemptions(server: RunningServer) -> float:
    return metrics(server.url).total("num_preemptions_total", "decode")


def check_alone(server: RunningServer, truth: Truth) -> None:
    """Draws do not depend on company; a chat is the prompt that its template makes of it; an end
    of text ends an answer and changes nothing before it."""
    assert_same(alone(server.url, truth.seeded()), truth.answers)
    body = {"messages": CHAT, "temperature": 0, "max_tokens": N_OUT, "return_token_ids": True}
    chat = run(server.url, lambda client: client.post("/v1/chat/completions", body))
    assert tuple(chat["prompt_token_ids"]) == truth.prompts["chat with system"]
    whole = truth.answers["chat with system"].tokens
    ends = [at for at, token in enumerate(whole) if token in truth.model.end_token_ids]
    tokens = whole[: ends[0] + 1] if ends else whole
    (choice,) = chat["choices"]
    assert tuple(choice["token_ids"]) == tokens
    assert choice["finish_reason"] == ("stop" if ends else "length")
    text = truth.model.tokenizer.decode(tokens, skip_special_tokens=True)
    assert choice["message"]["content"] == text


def assert_same(answers: Mapping[str, Answer], wanted: Mapping[str, Answer]) -> None:
    """Text, tokens and the bits of their log-probabilities."""
    for name, answer in answers.items():
        assert answer.said == wanted[name].said, f"{name}: {difference(answer, wanted[name])}"


def difference(answer: Answer, wanted: Answer) -> str:
    pairs = [zip(a.tokens, a.logprobs, strict=True) for a in (answer, wanted)]
    for at, (got, want) in enumerate(zip(*pairs, strict=False)):
        if got != want:
            return f"(token, logprob) {at}: {got}, wanted {want}"
    return f"{len(answer.tokens)} tokens {answer.finish}, {len(wanted.tokens)} {wanted.finish}"


def assert_top_1_is_greedy(answers: Mapping[str, Answer]) -> None:
    for name in TOP_1:
        top, greedy = answers[f"{name}, top 1"], answers[name]
        assert top.tokens == greedy.tokens[:N_OUT_TOP_1]
        assert top.logprobs == greedy.logprobs[:N_OUT_TOP_1]
