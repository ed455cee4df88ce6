"""Answers that break in the middle: what was said before is told, and then why there is no more."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from common.errors import PeerError
from common.messages import FinishReason
from common.text.load import TextModel
from launch.gateway.api.answer import Answer, Piece
from launch.gateway.api.served import Served
from launch.gateway.engine import Stream
from launch.gateway.events import Delta, Rejected
from launch.gateway.transfers import RequestId
from tests.unit.gateway.api.preparing import completion
from tests.unit.gateway.scripted import serving, until

Pieces = AsyncIterator[list[Piece]]
ID = RequestId("")  # streams do not read it


def run(
    text: TextModel,
    served: Served,
    test: Callable[[Pieces, list[Stream]], Coroutine[Any, Any, None]],
    **body: object,
) -> None:
    """With an answer that every worker has accepted and none begins, and the stream of each of its
    prompts."""
    prepared = completion(served, **body)

    async def whole() -> None:
        async with serving(text, lambda _expect, _sample: ([], FinishReason.LENGTH)) as gateway:
            answer = Answer("cmpl-1", prepared, text, gateway.metrics)
            await answer.begin(gateway.engine)
            async with asyncio.timeout(5):
                await test(answer.pieces(), [one.stream for one in answer._runs])
            answer.close()
            await until(lambda: gateway.engine.n_requests == 0)

    asyncio.run(whole())


def said(text: TextModel, words: str) -> Delta:
    tokens = text.tokenizer.encode(words, add_special_tokens=False)
    return Delta(ID, 0, 0, tuple(tokens), None)


def broken() -> Rejected:
    return Rejected(ID, PeerError("boom"))


async def texts_until_it_breaks(pieces: Pieces) -> list[tuple[int, str]]:
    """Of each piece its choice and its text."""
    told: list[tuple[int, str]] = []
    with pytest.raises(PeerError, match="boom"):
        async for some in pieces:
            told += [(piece.choice, piece.text) for piece in some]
    return told


def test_what_others_said_before_one_of_them_broke_is_told(
    smollm2: TextModel, served: Served
) -> None:
    async def test(pieces: Pieces, streams: list[Stream]) -> None:
        streams[0].feed(said(smollm2, "Hello"))
        streams[1].feed(broken())
        assert await texts_until_it_breaks(pieces) == [(0, "Hello")]

    run(smollm2, served, test, prompt=["a", "b"])


def test_what_one_said_before_it_broke_is_told(smollm2: TextModel, served: Served) -> None:
    async def test(pieces: Pieces, streams: list[Stream]) -> None:
        streams[0].feed(said(smollm2, "Hello"))
        streams[0].feed(broken())
        assert await texts_until_it_breaks(pieces) == [(0, "Hello")]

    run(smollm2, served, test)


def test_one_whose_text_was_held_back_as_it_broke_ends(smollm2: TextModel, served: Served) -> None:
    async def test(pieces: Pieces, streams: list[Stream]) -> None:
        streams[0].feed(said(smollm2, "Hello"))
        streams[0].feed(broken())
        assert await texts_until_it_breaks(pieces) == [(0, "")]

    run(smollm2, served, test, stop="Hello there")
