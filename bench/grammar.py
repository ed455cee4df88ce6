"""What holding answers to a grammar costs, beside the decode steps that it is done in.

    python -m bench.grammar MODEL [--threads 2] [--dtype bfloat16] [--quantization none]

32 answers to real prompts are drawn at temperature 1, each held to a form of one kind; a new answer
begins where one ends. A step with masks and one without take turns. On a CPU nothing hides masks:
a step takes so much longer by them. The last line is JSON. Drives `common` only.
"""

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from bench.flag_types import Parser, model_path, positive
from bench.program import exit_status
from bench.stdout import show
from common.engine.constraints import Constraints
from common.engine.plan import Draw, PassPlan, Piece, pack
from common.engine.runner import Runner
from common.engine.sizing import kv_spec
from common.ids import PageId, TransferId
from common.kernels import ops
from common.kv.cache import TORCH_DTYPES, KVCache
from common.kv.layout import pages_for
from common.model.load import LoadedModel, load_model
from common.params import SamplingParams
from common.text.grammar import (
    Grammars,
    GrammarTokenizer,
    of_choice,
    of_ebnf,
    of_json_schema,
    of_regex,
)
from common.text.load import TextModel, load_text_model
from common.values import Quantization

BATCH = 32
MOST_TOKENS = 200  # of an answer
STEPS = 60
MOST_SHARE = 0.05  # of a step
_PAGE_TOKENS = 16
_PROMPT_TOKENS = 256
_TEXT = "Describe one thing that you can see from here, and say where it is. "
_CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Kyoto", "Quito", "Accra")


def _schema(n: int) -> dict[str, Any]:
    """`n`: schemas of other numbers are others."""
    place = {
        "type": "object",
        "properties": {
            "city": {"enum": [*_CITIES, f"town {n}"]},
            "street": {"type": "string", "maxLength": 24},
            "position": {"type": "array", "items": {"type": "number"}, "maxItems": 2},
        },
        "required": ["city", "street"],
    }
    return {
        "type": "object",
        "properties": {
            f"name_{n}": {"type": "string", "maxLength": 16},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "email": {"type": "string", "pattern": "^[a-z]{2,12}@[a-z]{2,12}\\.(com|org)$"},
            "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
            "home": place,
            "is_open": {"type": "boolean"},
        },
        "required": [f"name_{n}", "age", "email", "home"],
    }


_EBNF = r"""
root ::= query ("; " query)? "."
query ::= "SELECT " columns " FROM " name (" WHERE " condition)?
columns ::= name (", " name)? | "*"
condition ::= name (" = " | " < " | " > ") value (" AND " name " = " value)?
value ::= [0-9] [0-9]? [0-9]? | "'" [a-z]+ "'"
name ::= [a-z] [a-z_]*
"""


def _of_one(grammar: str) -> tuple[str, ...]:
    return (grammar,) * BATCH


GRAMMARS: Mapping[str, tuple[str, ...]] = {  # kind -> one an answer
    "json schema": _of_one(of_json_schema(_schema(0))),
    "json schema, each its own": tuple(of_json_schema(_schema(n)) for n in range(BATCH)),
    "json object": _of_one(of_json_schema({"type": "object"})),
    "regex": _of_one(of_regex(r"([A-Z][a-z]{1,9} ){3,12}\(\d{2,4}-\d{2}\)")),
    "choice": _of_one(of_choice([f"{a} and {b}" for a in _CITIES for b in _CITIES])),
    "ebnf": _of_one(of_ebnf(_EBNF)),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One kind. `longer_ms`: by how much steps with masks take longer, whatever it goes to."""

    kind: str
    n_steps: int
    mask_ms: float  # of a step, all answers' together: median
    p99_mask_ms: float
    free_step_ms: float
    longer_ms: float

    @property
    def share(self) -> float:
        return self.mask_ms / self.free_step_ms


class _Timed(Constraints):
    """Takes down how long masks took, a figure a pass."""

    seconds: float

    def allowed(self, draws: Sequence[Draw]) -> dict[int, NDArray[np.bool_]]:
        began = time.perf_counter()
        masks = super().allowed(draws)
        self.seconds = time.perf_counter() - began
        return masks


@dataclass(slots=True)
class _Answer:
    transfer: TransferId
    grammar: str
    prompt: tuple[int, ...]
    pages: list[PageId]
    outputs: tuple[int, ...] = ()


class _Batch:
    """Answers in progress."""

    def __init__(self, loaded: LoadedModel, text: TextModel, dtype: str) -> None:
        n_pages = pages_for(_PROMPT_TOKENS + MOST_TOKENS + 1, _PAGE_TOKENS)
        spec = kv_spec(loaded.spec, dtype, _PAGE_TOKENS)
        memory = np.zeros((n_pages * BATCH, spec.page_bytes), np.uint8)
        self.constraints = _Timed(Grammars(lambda: GrammarTokenizer(text)))
        self._runner = Runner(loaded.model, KVCache(spec, memory), self.constraints)
        self._ends = text.end_token_ids
        self._n_begun = 0
        ids = text.tokenizer.encode(_TEXT * _PROMPT_TOKENS, add_special_tokens=True)
        self._answers: list[_Answer] = []
        for b in range(BATCH):
            prompt = tuple(ids[: _PROMPT_TOKENS - b])  # so that they are not the same
            pages = [PageId(page) for page in range(b, n_pages * BATCH, BATCH)]
            self._answers.append(_Answer(self._new(), "", prompt, pages))
            self._runner.run(_plan([Piece(prompt[:-1], 0, pages)], ()))

    def _new(self) -> TransferId:
        self._n_begun += 1
        return TransferId(f"answer {self._n_begun}")

    def begin(self, grammars: Sequence[str]) -> None:
        """What was in progress is forgotten."""
        self._answers = [
            replace(answer, transfer=self._new(), grammar=grammar, outputs=())
            for answer, grammar in zip(self._answers, grammars, strict=True)
        ]

    def step(self, *, held: bool) -> float:
        """One token for each; seconds. What is not `held` to its grammar is thrown away."""
        draws = tuple(_draw(b, answer, held=held) for b, answer in enumerate(self._answers))
        result = self._runner.run(_plan([_piece(answer) for answer in self._answers], draws))
        if held:
            for answer, drawn in zip(self._answers, result.drawn, strict=True):
                answer.outputs += (drawn.token,)
                if drawn.token in self._ends or len(answer.outputs) == MOST_TOKENS:
                    answer.transfer, answer.outputs = self._new(), ()
        return result.seconds


def _plan(pieces: list[Piece], draws: tuple[Draw, ...]) -> PassPlan:
    return PassPlan(**pack(pieces, _PAGE_TOKENS), draws=draws)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


def _piece(answer: _Answer) -> Piece:
    tokens = answer.prompt + answer.outputs
    return Piece([tokens[-1]], len(tokens) - 1, answer.pages)


def _draw(b: int, answer: _Answer, *, held: bool) -> Draw:
    grammar = answer.grammar if held else ""
    return Draw(
        transfer=answer.transfer,
        attempt=1,
        sample=0,
        index=len(answer.outputs),
        row=b,
        params=SamplingParams(max_tokens=MOST_TOKENS, seed=b, grammar=grammar),
        prompt=answer.prompt,
        outputs=answer.outputs,
    )


def measure(batch: _Batch, kind: str, grammars: Sequence[str]) -> Row:
    batch.begin(grammars)
    held_s: list[float] = []
    free_s: list[float] = []
    masks_s: list[float] = []
    for _ in range(STEPS):
        held_s.append(batch.step(held=True))
        masks_s.append(batch.constraints.seconds)
        free_s.append(batch.step(held=False))
    return Row(
        kind=kind,
        n_steps=STEPS,
        mask_ms=statistics.median(masks_s) * 1e3,
        p99_mask_ms=float(np.percentile(masks_s, 99)) * 1e3,
        free_step_ms=statistics.median(free_s) * 1e3,
        longer_ms=(statistics.median(held_s) - statistics.median(free_s)) * 1e3,
    )


def _loaded(path: Path, dtype: str, quantization: Quantization) -> LoadedModel:
    return load_model(path, TORCH_DTYPES[dtype], None, 4096, quantization=quantization)


def main(argv: Sequence[str]) -> int:
    """Measure each kind. Returns 1 where masks take more than their share of a step."""
    parser = Parser(prog="python -m bench.grammar", description=__doc__)
    parser.add_argument("model", type=model_path)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(TORCH_DTYPES))
    parser.add_argument("--quantization", default="none", choices=get_args(Quantization))
    options = parser.parse_all(argv)
    ops.set_threads(options.threads, TORCH_DTYPES[options.dtype])
    loaded = _loaded(options.model, options.dtype, options.quantization)
    batch = _Batch(loaded, load_text_model(options.model), options.dtype)
    rows: list[Row] = []
    for kind, grammars in GRAMMARS.items():
        row = measure(batch, kind, grammars)
        rows.append(row)
        verdict = "ok  " if row.share < MOST_SHARE else "MISS"
        show(
            f"{verdict} {kind:<26} masks {row.mask_ms:6.2f} ms (p99 {row.p99_mask_ms:7.2f}) of "
            f"{row.free_step_ms:6.1f}: {row.share:6.1%}; steps take {row.longer_ms:5.2f} ms longer",
        )
    show(json.dumps({"benchmark": "grammar", "rows": [asdict(row) for row in rows]}))
    return int(any(row.share >= MOST_SHARE for row in rows))


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
