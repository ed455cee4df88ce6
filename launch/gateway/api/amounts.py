"""How much is in a JSON body, told before it is decoded: what it decodes to may take forty times
its size, and the interpreter's lock for as long as that takes. Must not know what bodies say.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from common.errors import ClientError
from launch.gateway.wording import count

MAX_ENTRIES = 2**18  # of a body's lists and objects, all together
MAX_LISTS = 2**15  # and objects
_PIECE_BYTES = 2**17
_QUOTE, _COMMA, _LIST, _OBJECT = b'",[{'


@dataclass(frozen=True, slots=True)
class Amount:
    """Of a body, or of a part of one: at most so much."""

    entries: int
    lists: int

    @property
    def is_too_much(self) -> bool:
        return self.entries > MAX_ENTRIES or self.lists > MAX_LISTS


def amount(body: bytes) -> Amount:
    """Exact where it is too much."""
    commas = lists = 0
    for piece in _pieces(body):
        commas += piece.count(b",")
        lists += piece.count(b"[") + piece.count(b"{")
    told = Amount(commas + lists, lists)
    return _outside_strings(body) if told.is_too_much else told


def _outside_strings(body: bytes) -> Amount:
    commas = lists = 0
    is_within = np.False_  # a string, at the piece's begin
    for piece in _pieces(body):
        piece_P = np.frombuffer(piece.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
        if not len(piece_P):
            continue
        within_P = np.bitwise_xor.accumulate(piece_P == _QUOTE) ^ is_within
        is_within = within_P[-1]
        commas += np.count_nonzero((piece_P == _COMMA) & ~within_P)
        opened_P = (piece_P == _LIST) | (piece_P == _OBJECT)
        lists += np.count_nonzero(opened_P & ~within_P)
    return Amount(int(commas + lists), int(lists))


def _pieces(body: bytes) -> Iterator[bytes]:
    """Short, so that nobody waits long for the interpreter's lock. None ends within an escape."""
    at = 0
    while at < len(body):
        end = at + _PIECE_BYTES
        n_slashes = end - at - len(body[at:end].rstrip(b"\\")) if end < len(body) else 0
        end += n_slashes % 2
        yield body[at:end]
        at = end


def check_amount(body: bytes) -> None:
    """Raises ClientError where it is too much to be decoded."""
    if len(body) <= MAX_LISTS:
        return
    told = amount(body)
    if told.is_too_much:
        raise too_much(told)


def too_much(told: Amount) -> ClientError:
    return ClientError(
        f"the body has {count(told.lists, 'list or object', 'lists and objects')}, with "
        f"{count(told.entries, 'entry', 'entries')}; at most "
        f"{MAX_LISTS}, with {MAX_ENTRIES}",
        status=413,
    )
