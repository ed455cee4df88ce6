"""Recorded traces: when requests came, how long they were, what they shared.

Three forms, told apart by their first line: Mooncake's JSONL (timestamp in ms, input_length,
output_length, hash_ids of blocks: equal ids mean an equal prefix up to their end), Azure's LLM
CSV (TIMESTAMP, ContextTokens, GeneratedTokens) and BurstGPT's CSV (Timestamp in s, Request tokens,
Response tokens). Imports nothing of the engine.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from bench.jsonl import read_lines

BLOCK_TOKENS = 512  # Mooncake's


class Row(msgspec.Struct, frozen=True):
    """A request of a trace as it stands there."""

    at_s: float  # after the first
    n_in: int
    n_out: int
    hash_ids: tuple[int, ...] = ()


class _MooncakeLine(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


class Fitted(msgspec.Struct, frozen=True):
    """The same, with lengths that the model takes."""

    at_s: float
    n_in: int
    n_out: int
    blocks: tuple[tuple[int, int], ...]  # (id, tokens)

    @property
    def prefix(self) -> int | None:
        return self.blocks[0][0] if self.blocks else None


def read(path: Path) -> list[Row]:
    """In the order of time, the first at 0. Raises ValueError, with the place, for a form that it
    does not know."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        is_json = lines.readline().startswith("{")
        lines.seek(0)
        rows = _mooncake(path) if is_json else list(_csv(lines, path))
    rows = sorted(rows, key=lambda row: row.at_s)
    begun_s = rows[0].at_s if rows else 0.0
    return [msgspec.structs.replace(row, at_s=row.at_s - begun_s) for row in rows]


def _mooncake(path: Path) -> list[Row]:
    return [
        Row(line.timestamp / 1e3, line.input_length, line.output_length, line.hash_ids)
        for line in read_lines(path, _MooncakeLine)
    ]


def _csv(lines: Iterable[str], path: Path) -> Iterator[Row]:
    table = csv.DictReader(lines)
    match table.fieldnames:
        case ["TIMESTAMP", "ContextTokens", "GeneratedTokens", *_]:
            names, seconds = ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), _unix_s
        case ["Timestamp", *others] if {"Request tokens", "Response tokens"} <= set(others):
            names, seconds = ("Timestamp", "Request tokens", "Response tokens"), float
        case columns:
            raise ValueError(f"{path}: columns {columns} are of no trace that is known")
    for row in table:
        try:
            at, n_in, n_out = (row[name] for name in names)
            made = Row(seconds(at), int(n_in), int(n_out))
        except (TypeError, ValueError) as error:  # None: the line is cut short
            raise ValueError(f"{path}:{table.line_num}: {error}") from None
        if made.n_in > 0 and made.n_out > 0:  # BurstGPT: 0 out is a failure
            yield made


def _unix_s(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def fit(
    rows: Sequence[Row],
    *,
    max_tokens: int | None,
    length_scale: float | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> list[Fitted]:
    """All lengths by one factor, so that their proportions, and the shared parts, stay.

    max_tokens    input and output together, the model's context; None: unknown, all fits
    length_scale  the factor; None: the largest up to 1 with which every request fits
    With a factor that is given, prompts too long are cut to fit. Raises ValueError where an
    output alone does not.
    """
    longest = max((row.n_in + row.n_out for row in rows), default=1)
    scale = length_scale or min(1.0, (max_tokens or longest) / longest)
    fitted: list[Fitted] = []
    for row in rows:
        n_out = max(1, int(row.n_out * scale))
        n_in = max(1, int(row.n_in * scale))
        if max_tokens is not None and n_in + n_out > max_tokens:
            n_in = max_tokens - n_out
            if n_in < 1:
                raise ValueError(f"{n_out} tokens out fit no context of {max_tokens}")
        fitted.append(Fitted(row.at_s, n_in, n_out, _blocks(row.hash_ids, block_tokens * scale)))
    return fitted


def _blocks(hash_ids: Sequence[int], block_tokens: float) -> tuple[tuple[int, int], ...]:
    """An id stands at one place in all prompts, so its scaled length is the same in all."""
    ends = [int(block_tokens * (k + 1)) for k in range(len(hash_ids))]
    starts = [0, *ends]
    return tuple(
        (key, end - start) for key, start, end in zip(hash_ids, starts, ends, strict=False)
    )
