"""What choices say, told apart as it comes: thoughts, text, calls of tools."""

from collections.abc import Iterable
from dataclasses import dataclass

from launch.gateway.api.answer import Piece
from launch.gateway.api.prepare import Prepared
from launch.gateway.reasoning.think import ThinkReader
from launch.gateway.tools.reader import Reader, Said


@dataclass(slots=True)
class _Choice:
    reader: Reader
    think: ThinkReader | None  # the same, if it knows thoughts
    n_thought: int = 0  # tokens up to the last thought, its marks included


class Reading:
    """Of one answer."""

    def __init__(self, prepared: Prepared) -> None:
        self._calling = prepared.calling
        self._thinks = prepared.thinks
        self.is_plain = self._calling is None and self._thinks is None  # all that is said is text
        self._choices: dict[int, _Choice] = {}

    @property
    def reasoning_tokens(self) -> int | None:
        """Of all choices so far; None: thoughts are not told apart."""
        if self._thinks is None:
            return None
        return sum(choice.n_thought for choice in self._choices.values())

    def read(self, piece: Piece) -> Said:
        """What it adds. Nothing is held back behind the piece that ends its choice."""
        if self.is_plain:
            return Said(piece.text)
        choice = self._choices.get(piece.choice)
        if choice is None:
            choice = self._choices[piece.choice] = self._new()
        thought = choice.think is not None and choice.think.thinks
        said = choice.reader.push(piece.text)
        if piece.finish is not None:
            said += choice.reader.finish()
        if thought or said.reasoning:
            choice.n_thought = piece.n_tokens
        return said

    def read_all(self, pieces: Iterable[Piece]) -> Said:
        """Of one choice, up to its end."""
        said = [self.read(piece) for piece in pieces]
        return Said(
            "".join(one.text for one in said),
            tuple(part for one in said for part in one.calls),
            "".join(one.reasoning for one in said),
        )

    def _new(self) -> _Choice:
        calls = None if self._calling is None else self._calling.new_reader()
        if self._thinks is not None:
            think = ThinkReader(inside=self._thinks, then=calls)
            return _Choice(think, think)
        assert calls is not None
        return _Choice(calls, None)
