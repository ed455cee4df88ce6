"""Runs a model over one sequence in a small pool whose pages lie out of order."""

import numpy as np
from torch import Tensor

from common.engine.plan import PassPlan, Piece, pack
from common.engine.runner import Runner
from common.ids import PageId
from common.kv.cache import KVCache
from common.kv.layout import KVSpec, pages_for
from common.model.llama import Llama

PAGE_TOKENS = 8


class OneSequence:
    """Give it tokens, in any portions; it gives back the logits of each."""

    def __init__(self, model: Llama, max_tokens: int, kv_dtype: str | None = None) -> None:
        """`kv_dtype`: of pages; None: the model's own."""
        self.n_tokens = 0
        spec = KVSpec(
            n_layers=model.spec.n_layers,
            n_kv_heads=model.spec.n_kv_heads,
            head_dim=model.spec.head_dim,
            page_tokens=PAGE_TOKENS,
            dtype=kv_dtype or str(model.final_norm_H.dtype).removeprefix("torch."),
        )
        n_pages = pages_for(max_tokens, PAGE_TOKENS)
        pool = KVCache(spec, np.zeros((n_pages, spec.page_bytes), np.uint8))
        self.runner = Runner(model, pool)
        order = np.random.default_rng(0).permutation(n_pages)
        self.pages = [PageId(int(page)) for page in order]

    def run(self, tokens: list[int]) -> Tensor:
        """[len(tokens), V] float32."""
        arrays = pack([Piece(tokens, self.n_tokens, self.pages)], PAGE_TOKENS)
        plan = PassPlan(**arrays)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does
        self.n_tokens += len(tokens)
        return self.runner.model.logits(self.runner.hidden(plan))
