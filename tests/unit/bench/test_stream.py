import json

import pytest

from bench.stream import Chunk, MalformedEvent, Reader


def event(**body: object) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def text(content: str, **more: object) -> bytes:
    return event(choices=[{"index": 0, "text": content, **more}])


def delta(**content: object) -> bytes:
    return event(choices=[{"index": 0, "delta": content}])


DONE = b"data: [DONE]\n\n"


def test_a_stream_gives_the_same_chunks_however_it_is_cut() -> None:
    sent = text("one") + text("zwei ü") + DONE
    for size in (1, 2, 3, 7, len(sent)):
        reader = Reader()
        chunks = [c for at in range(0, len(sent), size) for c in reader.feed(sent[at : at + size])]
        assert chunks == [Chunk("one", None), Chunk("zwei ü", None)]
        assert reader.done


def test_carriage_returns_comments_and_other_fields_are_no_matter() -> None:
    sent = b': ping\r\nevent: x\r\nid: 1\r\ndata:{"choices":[{"text":"a"}]}\r\n\r\ndata: [DONE]\r\n'
    reader = Reader()
    assert reader.feed(sent) == [Chunk("a", None)]
    assert reader.done


@pytest.mark.parametrize(
    "no_tokens",
    [
        delta(role="assistant"),
        delta(role="assistant", content=""),
        delta(content=None),
        text(""),
        event(choices=[{"index": 0, "text": "", "finish_reason": "length"}]),
        event(choices=[]),
        event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 4}),
        text("", token_ids=[]),
    ],
)
def test_what_carries_no_token_is_no_chunk(no_tokens: bytes) -> None:
    assert Reader().feed(no_tokens) == []


@pytest.mark.parametrize(
    ("sent", "chunk"),
    [
        (delta(content="a"), Chunk("a", None)),
        (delta(reasoning_content="b"), Chunk("b", None)),
        (delta(reasoning="c"), Chunk("c", None)),
        (text("", token_ids=[5]), Chunk("", 1)),  # half of a character
        (text("abc", token_ids=[5, 6, 7]), Chunk("abc", 3)),
    ],
)
def test_what_carries_tokens_is_a_chunk(sent: bytes, chunk: Chunk) -> None:
    assert Reader().feed(sent) == [chunk]


def test_a_running_usage_says_how_many_tokens_each_chunk_has() -> None:
    reader = Reader()
    sent = b""
    for content, so_far in (("a", 1), ("bcd", 4), ("ef", 6)):
        usage = {"prompt_tokens": 9, "completion_tokens": so_far}
        sent += event(choices=[{"index": 0, "text": content}], usage=usage)
    assert [chunk.n_tokens for chunk in reader.feed(sent + DONE)] == [1, 3, 2]
    assert (reader.prompt_tokens, reader.completion_tokens) == (9, 6)


def test_an_error_among_the_events_is_kept() -> None:
    reader = Reader()
    assert reader.feed(text("a") + event(error={"message": "no room", "code": 500}))
    assert reader.error == "no room"
    assert not reader.done


def test_an_error_of_another_form_is_kept_as_it_is() -> None:
    reader = Reader()
    reader.feed(event(error="broken"))
    assert reader.error == "broken"


@pytest.mark.parametrize("data", [b"{", b"[1]", b'{"choices": 3}'])
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedEvent):
        Reader().feed(b"data: " + data + b"\n\n")


def test_an_answer_that_came_whole_is_one_chunk() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    for choice, n_tokens in (({"text": "ab", "token_ids": [1, 2]}, 2), ({"text": "ab"}, 4),
                             ({"message": {"content": "ab"}}, 4)):  # fmt: skip
        reader = Reader()
        assert reader.whole(json.dumps({"choices": [choice], "usage": usage}).encode()) == [
            Chunk("ab", n_tokens)
        ]
        assert (reader.done, reader.prompt_tokens, reader.completion_tokens) == (True, 3, 4)
    with pytest.raises(MalformedEvent):
        Reader().whole(b"<html>")
