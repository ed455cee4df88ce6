"""Who computes a prompt, chosen by predicted cost; the answer does not depend on it."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from tests.api_client import metrics, until
from tests.servers import RunningServer, serving
from tests.system.streams import SMALL, connected

pytestmark = pytest.mark.slow
SYSTEM = "You are a librarian who answers in one sentence. " * 40  # some 360 tokens
QUESTIONS = ("Name a book about the sea.", "Who?")
DECISIONS = ("remote", "local")


@pytest.fixture(scope="module")
def choosing(default_model: Path) -> Iterator[RunningServer]:
    """One prefill and one decode worker; the gateway chooses."""
    with serving(default_model, *SMALL, "--disaggregate", "auto") as running:
        yield running


def chat(client: openai.OpenAI, said: list[str]) -> tuple[str, int]:
    """The next answer to a system prompt and what was said since; how much of it was cached."""
    roles = ("user", "assistant")
    turns = [{"role": roles[n % 2], "content": text} for n, text in enumerate(said)]
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "system", "content": SYSTEM}, *turns],  # pyright: ignore[reportArgumentType]
        max_tokens=12,
        temperature=0,
    )
    text, usage = answer.choices[0].message.content, answer.usage
    assert text
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return text, usage.prompt_tokens_details.cached_tokens or 0


def decided(server: RunningServer) -> list[int]:
    """Attempts by decision, so far."""
    told = [
        (labels, value)
        for (name, labels), value in metrics(server.url).values.items()
        if name == "baton:disaggregation_total"
    ]
    return [
        round(sum(value for labels, value in told if ("decision", one) in labels))
        for one in DECISIONS
    ]


def test_a_second_turn_stays_where_its_pages_are(
    choosing: RunningServer, client: openai.OpenAI
) -> None:
    """`client` speaks to a server whose prefill workers compute everything."""
    with connected(choosing) as chooser:
        first, _ = chat(chooser, [QUESTIONS[0]])
        assert decided(choosing) == [1, 0]  # a long prompt, and nobody is busy
        until(lambda: metrics(choosing.url).total("kv_cache_usage_perc", "decode") == 0, "its end")
        said = [QUESTIONS[0], first, QUESTIONS[1]]
        second, n_cached = chat(chooser, said)
        assert decided(choosing) == [1, 1]
        assert n_cached > 300
    assert chat(client, [QUESTIONS[0]])[0] == first
    assert chat(client, said)[0] == second
