"""The bytes of an OpenAI-compatible event stream become chunks of tokens.

Pure: bytes in, chunks out, no clock and no socket. A chunk is counted only if it carries tokens: an
event with nothing but a role, a finish reason or the usage is none.
"""

import msgspec


class MalformedEvent(Exception):
    """The server sent what is no event of a completion."""


class Chunk(msgspec.Struct, frozen=True):
    """An event that carried tokens."""

    text: str
    n_tokens: int | None  # None: the server does not say


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    message: _Delta | None = None  # of a chat that is not streamed
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class _Error(msgspec.Struct):
    message: str


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


class Reader:
    """Feed it what arrives, in pieces of any size."""

    def __init__(self) -> None:
        self.done = False  # the end was announced
        self.error: str | None = None  # of an event that says that the server failed
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None  # by the last usage seen
        self._rest = b""
        self._decode = msgspec.json.Decoder(_Event).decode

    def feed(self, received: bytes) -> list[Chunk]:
        """The chunks that are complete now. Raises MalformedEvent."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        chunks: list[Chunk] = []
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    self.done = True
                elif data and (chunk := self._chunk(data)) is not None:
                    chunks.append(chunk)
        return chunks

    def whole(self, data: bytes) -> list[Chunk]:
        """The one chunk, if there is any, of an answer that is not streamed. Raises
        MalformedEvent."""
        chunk = self._chunk(data)
        self.done = True
        return [] if chunk is None else [chunk]

    def _chunk(self, data: bytes) -> Chunk | None:
        try:
            event = self._decode(data)
        except msgspec.DecodeError as error:
            raise MalformedEvent(f"{error}: {data.decode('utf-8', 'replace')}") from None
        if event.error is not None:
            self.error = _message(event.error)
        more = self._use(event.usage)
        if not event.choices:
            return None
        choice = event.choices[0]
        text = _text(choice)
        n_tokens = more if choice.token_ids is None else len(choice.token_ids)
        return Chunk(text, n_tokens) if text or n_tokens else None

    def _use(self, usage: _Usage | None) -> int | None:
        """How many tokens the running count grew by, where there is one."""
        if usage is None or usage.completion_tokens is None:
            return None
        more = usage.completion_tokens - (self.completion_tokens or 0)
        self.prompt_tokens = usage.prompt_tokens
        self.completion_tokens = usage.completion_tokens
        return more


def _text(choice: _Choice) -> str:
    delta = choice.delta or choice.message
    if delta is None:
        return choice.text or ""
    return (delta.reasoning_content or delta.reasoning or "") + (delta.content or "")


def _message(error: object) -> str:
    try:
        return msgspec.convert(error, _Error).message
    except msgspec.ValidationError:
        return str(error)
