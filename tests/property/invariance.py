"""A pool in which sequences are computed in any order, held against each computed alone (law 3)."""

import random
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import torch
from torch import Tensor

from common.engine.plan import PassPlan, Piece, pack
from common.engine.runner import Runner
from common.ids import PageId
from common.kernels import ops
from common.kv.cache import KVCache
from common.kv.layout import KVSpec, pages_for
from common.model.llama import Llama

POISON = 0xFF  # of unused pages: every float is NaN


@dataclass(frozen=True, kw_only=True)
class Truth:
    """What every position gives when its sequence is computed alone, in one pass on one thread."""

    hidden_SH: Tensor
    logits_SV: Tensor
    kv: Tensor  # [layers, 2, KV heads, S, head dim]


@dataclass(eq=False)
class Running:
    tokens: list[int]
    truth: Truth
    pages: list[PageId] = field(default_factory=list[PageId])
    done: int = 0

    @property
    def left(self) -> int:
        return len(self.tokens) - self.done


class World:
    """One pool. Whatever is done to it, every row must come out with the bits of its `Truth`."""

    def __init__(self, model: Llama, page_tokens: int, n_pages: int, rng: random.Random) -> None:
        self.model = model
        self.rng = rng
        self.kv_spec = KVSpec(
            n_layers=model.spec.n_layers,
            n_kv_heads=model.spec.n_kv_heads,
            head_dim=model.spec.head_dim,
            page_tokens=page_tokens,
            dtype="float32",
        )
        self.runner, self.kv = self._pool(n_pages)
        self.free = [PageId(page) for page in range(n_pages)]
        self.users = [0] * n_pages
        self.running: list[Running] = []
        self.truths: dict[tuple[int, ...], Truth] = {}

    def start(self, tokens: list[int]) -> None:
        """Computed pages of an equal beginning are shared, as by the prefix cache."""
        key = tuple(tokens)
        if key not in self.truths:
            self.truths[key] = self._truth(tokens)
        sequence = Running(tokens, self.truths[key])
        self._share_prefix(sequence)
        self.running.append(sequence)

    def step(self, chunks: list[tuple[Running, int]], threads: int) -> None:
        """Compute the next n tokens of each, in one pass."""
        page_tokens = self.kv_spec.page_tokens
        for sequence, n in chunks:
            missing = pages_for(sequence.done + n, page_tokens) - len(sequence.pages)
            sequence.pages += [self._take() for _ in range(missing)]
        ops.set_threads(threads)
        plan = plan_of(
            [Piece(s.tokens[s.done : s.done + n], s.done, s.pages) for s, n in chunks], page_tokens
        )
        hidden_TH = self.runner.hidden(plan)
        logits_BV = self.model.logits(hidden_TH[torch.from_numpy(plan.start_B1[1:] - 1).long()])
        for b, (sequence, n) in enumerate(chunks):
            begin, end = sequence.done, sequence.done + n
            rows = slice(int(plan.start_B1[b]), int(plan.start_B1[b + 1]))
            check_equal(hidden_TH[rows], sequence.truth.hidden_SH[begin:end], "hidden states")
            check_equal(logits_BV[b], sequence.truth.logits_SV[end - 1], "logits")
            sequence.done = end
            self._check_kv(sequence, begin)

    def preempt(self, sequence: Running) -> None:
        """Give its pages back; it starts again, from what others have of its beginning."""
        self._give_back(sequence)
        self._share_prefix(sequence)

    def finish(self, sequence: Running) -> None:
        self._check_kv(sequence, 0)
        self._give_back(sequence)
        self.running.remove(sequence)

    def check_free_pages(self) -> None:
        assert (
            self.runner.cache.pages_PB[torch.tensor(self.free, dtype=torch.int64)] == POISON
        ).all()

    def _pool(self, n_pages: int) -> tuple[Runner, Tensor]:
        """A runner over a fresh pool, and its KV: [pages, layers, 2, KV heads, S, head dim]."""
        pages = np.full((n_pages, self.kv_spec.page_bytes), POISON, np.uint8)
        kv = torch.from_numpy(pages)[:, : self.kv_spec.used_bytes].view(torch.float32)
        return Runner(self.model, KVCache(self.kv_spec, pages)), kv.view(-1, *self.kv_spec.shape)

    def _truth(self, tokens: list[int]) -> Truth:
        n_pages = pages_for(len(tokens), self.kv_spec.page_tokens)
        runner, kv = self._pool(n_pages)
        ops.set_threads(1)
        piece = Piece(tokens, 0, [PageId(page) for page in range(n_pages)])
        hidden_SH = runner.hidden(plan_of([piece], self.kv_spec.page_tokens))
        joined = kv.permute(1, 2, 3, 0, 4, 5).flatten(3, 4)[:, :, :, : len(tokens)]
        return Truth(hidden_SH=hidden_SH, logits_SV=self.model.logits(hidden_SH), kv=joined.clone())

    def _check_kv(self, sequence: Running, begin: int) -> None:
        position = torch.arange(begin, sequence.done)
        page = torch.tensor(sequence.pages)[position // self.kv_spec.page_tokens]
        got = self.kv[page, :, :, :, position % self.kv_spec.page_tokens]
        wanted = sequence.truth.kv[:, :, :, begin : sequence.done].permute(3, 0, 1, 2, 4)
        check_equal(got, wanted, "KV")

    def _share_prefix(self, sequence: Running) -> None:
        """At least one token is left to compute, as somebody wants its logits."""
        page_tokens = self.kv_spec.page_tokens
        for other in self.running:
            pairs = zip(other.tokens[: other.done], sequence.tokens[:-1], strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            n_pages = same // page_tokens
            if other is not sequence and n_pages > len(sequence.pages):
                self._give_back(sequence)
                sequence.pages = other.pages[:n_pages]
                sequence.done = n_pages * page_tokens
                for page in sequence.pages:
                    self.users[page] += 1

    def _take(self) -> PageId:
        page = self.free.pop(self.rng.randrange(len(self.free)))
        self.users[page] = 1
        return page

    def _give_back(self, sequence: Running) -> None:
        for page in sequence.pages:
            self.users[page] -= 1
            if not self.users[page]:
                self.runner.cache.pages_PB[page] = POISON
                self.free.append(page)
        sequence.pages, sequence.done = [], 0


def plan_of(pieces: list[Piece], page_tokens: int) -> PassPlan:
    arrays = pack(pieces, page_tokens)
    return PassPlan(**arrays)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


def check_equal(got: Tensor, wanted: Tensor, what: str) -> None:
    """Bit for bit."""
    differ = got.contiguous().view(torch.int32) != wanted.contiguous().view(torch.int32)
    assert not differ.any(), f"{int(differ.sum())} of {differ.numel()} {what} differ"
