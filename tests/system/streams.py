"""Servers that are small and exact, and streams in flight at them."""

from collections.abc import Iterator
from contextlib import contextmanager

import openai
from openai.types import Completion

from tests.servers import RunningServer

SMALL = (
    *("--served-model-name", "smollm2"),
    *("--dtype", "float32"),
    *("--max-model-len", "1024"),
    *("--kv-cache-memory-bytes", "128MiB"),  # 2,912 tokens
    *("--prefill.chunk-tokens", "64"),
)
"""Options of a server, and of what joins it."""


@contextmanager
def connected(server: RunningServer) -> Iterator[openai.OpenAI]:
    """The official client, which must not hide an error by trying again."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@contextmanager
def streaming(
    server: RunningServer, n_tokens: int, prompt: str | list[int] = "Count: one, two,"
) -> Iterator["openai.Stream[Completion]"]:
    """A greedy stream that is taken by its workers."""
    with (
        connected(server) as client,
        client.completions.create(
            model="smollm2",
            prompt=prompt,
            stream=True,
            max_tokens=n_tokens,
            temperature=0,
            extra_body={"ignore_eos": True},
        ) as stream,
    ):
        yield stream


def text_of(events: list[Completion]) -> str:
    """Of a stream that came to its end."""
    assert events[-1].choices[0].finish_reason == "length"
    return "".join(choice.text for event in events for choice in event.choices)
