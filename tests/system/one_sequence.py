"""Runs a model over one sequence in a small pool whose pages lie out of order."""

import numpy as np
import torch
from torch import Tensor

from common.engine.plan import Piece, pack
from common.ids import PageId
from common.kernels.attention_plan import Sequences, plan_attention
from common.kv.cache import KVCache
from common.kv.layout import KVSpec, pages_for
from common.model.inputs import PassInputs
from common.model.llama import Llama

PAGE_TOKENS = 8


class OneSequence:
    """Give it tokens, in any portions; it gives back the logits of each."""

    def __init__(self, model: Llama, max_tokens: int) -> None:
        self.model = model
        self.n_tokens = 0
        spec = KVSpec(
            n_layers=model.spec.n_layers,
            n_kv_heads=model.spec.n_kv_heads,
            head_dim=model.spec.head_dim,
            page_tokens=PAGE_TOKENS,
            dtype="float32",
        )
        n_pages = pages_for(max_tokens, PAGE_TOKENS)
        self.pool = KVCache(spec, np.zeros((n_pages, spec.page_bytes), np.uint8))
        order = np.random.default_rng(0).permutation(n_pages)
        self.pages = [PageId(int(page)) for page in order]

    def run(self, tokens: list[int]) -> Tensor:
        """[len(tokens), V] float32."""
        arrays = pack([Piece(tokens, self.n_tokens, self.pages)], PAGE_TOKENS)
        sequences = Sequences(
            **{k: arrays[k].astype(np.int32) for k in ("start_B1", "len_B", "tables_BM")}
        )
        rows = {k: torch.from_numpy(arrays[k]) for k in ("tokens_T", "positions_T", "slots_T")}
        inputs = PassInputs(**rows, groups=plan_attention(sequences, self.pool.geometry))
        self.n_tokens += len(tokens)
        return self.model.logits(self.model.forward(inputs, self.pool))
