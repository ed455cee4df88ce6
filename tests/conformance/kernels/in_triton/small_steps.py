"""A small model, and passes over a few sequences of it, as a core plans them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import tokenizers
import torch
from torch import Tensor

from common.engine.constraints import Constraints
from common.engine.plan import Draw, Drawn, PassPlan, PassResult, Piece, filled, pack
from common.engine.runner import Runner
from common.ids import PageId, TransferId
from common.kernels.triton import choice
from common.kv.cache import KVCache
from common.kv.layout import KVSpec
from common.model.llama import Llama
from common.model.packing import packed_layout
from common.model.rope import cos_sin_table
from common.params import SamplingParams
from common.text.grammar import Grammars, GrammarTokenizer
from common.text.load import TextModel
from common.text.model_defaults import GenerationDefaults
from common.text.tokenizer import Tokenizer, Vocabulary
from tests.property.test_invariance import SPEC

PAGE_TOKENS, PAGES_EACH = 4, 6
MAX_LEN = PAGE_TOKENS * PAGES_EACH
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789-+."
VOCAB = len(LETTERS) + 1
END = VOCAB - 1
SMALL = msgspec.structs.replace(
    SPEC, hidden_size=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, intermediate_size=32,
    vocab_size=VOCAB, max_position=MAX_LEN, tied_embeddings=False,
)  # fmt: skip


def small_model(broken: int | None) -> Llama:
    generator = torch.Generator().manual_seed(0)

    def normal(name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return 1 + values / 4 if name.endswith("norm") else values * shape[-1] ** -0.5

    weights = {packed.name: normal(packed.name, packed.shape) for packed in packed_layout(SMALL)}
    if broken is not None:
        weights["embed"][broken] = torch.nan
    return Llama(SMALL, dict(weights), cos_sin_table(SMALL, MAX_LEN))


def small_runner(n_sequences: int = 2, *, broken: int | None = None) -> Runner:
    """`broken`: a token after which no logit is finite."""
    kv = KVSpec(n_layers=1, n_kv_heads=1, head_dim=16, page_tokens=PAGE_TOKENS, dtype="float32")
    cache = KVCache(kv, np.zeros((n_sequences * PAGES_EACH, kv.page_bytes), np.uint8))
    return Runner(small_model(broken), cache, small_constraints())


def small_constraints() -> Constraints:
    return Constraints(Grammars(lambda: GrammarTokenizer(small_text())))


def small_text() -> TextModel:
    """A token a letter, and one that ends."""
    letters = {letter: at for at, letter in enumerate(LETTERS)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=letters, merges=[]))
    token_bytes = (*(letter.encode() for letter in LETTERS), b"<end>")
    return TextModel(
        name="small",
        tokenizer=Tokenizer(backend, Vocabulary(token_bytes, frozenset([END]), False)),  # noqa: FBT003 its own form
        template=None,
        end_token_ids=frozenset([END]),
        generation_defaults=GenerationDefaults(),
        context_length=MAX_LEN,
        vocab_size=VOCAB,
    )


@dataclass
class Sequence_:  # noqa: N801 the other is Python's
    params: SamplingParams
    prompt: list[int]
    pages: list[PageId]
    outputs: list[int] = field(default_factory=list[int])  # read
    n_kv: int = 0
    n_unread: int = 0
    draw: int = 0  # of the last pass that it was in: which was its


class Sequences:
    """What is drawn is known a pass late. A name with "!" has lost its pages and is computed anew:
    it was not in the pass before."""

    def __init__(self, rules: Mapping[str, SamplingParams]) -> None:
        n = len(rules)
        self.all = {
            name: Sequence_(
                params,
                prompt=[(7 * i + ord(name[0])) % (VOCAB - 1) for i in range(3 + at)],
                pages=[PageId(at + n * page) for page in reversed(range(PAGES_EACH))],
            )
            for at, (name, params) in enumerate(rules.items())
        }

    def plan(self, names: Sequence[str]) -> PassPlan:
        pieces: list[Piece] = []
        unread: list[tuple[int, int]] = []
        n_rows = 0
        for name in names:
            one = self.all[name.rstrip("!")]
            one.n_kv = 0 if name.endswith("!") else one.n_kv
            tokens = [0] if one.n_unread else [*one.prompt, *one.outputs][one.n_kv :]
            if one.n_unread:
                unread.append((n_rows, one.draw))
            pieces.append(Piece(tokens, one.n_kv, one.pages))
            one.n_kv += len(tokens)
            n_rows += len(tokens)
        arrays = pack(pieces, PAGE_TOKENS)
        draws = [
            self._draw(name.rstrip("!"), at, piece)
            for at, (name, piece) in enumerate(zip(names, pieces, strict=True))
        ]
        rows_U, draws_U = np.array(unread, np.int64).reshape(-1, 2).T
        return PassPlan(
            **arrays,  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does
            draws=tuple(draws),
            unread_rows_U=rows_U,
            unread_draws_U=draws_U,
        )

    def _draw(self, name: str, at: int, piece: Piece) -> Draw:
        one = self.all[name]
        one.draw, one.n_unread = at, one.n_unread + 1
        return Draw(
            transfer=TransferId(name),
            attempt=0,
            sample=0,
            index=len(one.outputs) + one.n_unread - 1,
            row=piece.first_row + len(piece.tokens) - 1,
            params=one.params,
            prompt=tuple(one.prompt),
            outputs=tuple(one.outputs),
        )

    def read(self, names: Sequence[str], result: PassResult) -> None:
        for name, drawn in zip(names, result.drawn, strict=True):
            one = self.all[name.rstrip("!")]
            one.outputs.append(drawn.token)
            one.n_unread -= 1


class DrawnByTorch(Runner):
    """By `common.sampling` without a kernel of Triton's; these compute what it draws from."""

    def drawn_from(self, logits_DV: Tensor, draws: tuple[Draw, ...]) -> tuple[Drawn, ...]:
        choice.interpret(wanted=False)
        drawn = super().drawn_from(logits_DV, draws)
        choice.interpret(wanted=True)
        return drawn


def one_by_one(n_sequences: int, plans: Sequence[PassPlan]) -> list[tuple[Drawn, ...]]:
    """Each computed, and drawn from by the host, when the one before has been read."""
    like = small_runner(n_sequences)
    runner = DrawnByTorch(like.model, like.cache, small_constraints())
    said: list[tuple[Drawn, ...]] = []
    for plan in plans:
        said.append(runner.run(filled(plan, said[-1] if said else ())).drawn)
    return said
