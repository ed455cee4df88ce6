"""What a worker takes of a GPU beside its pages, found by computing the longest pass that there is.

Must not decide what is done about it.
"""

import torch

from common.config import WorkerConfig
from common.engine.gpu_memory import Needs, draws_bytes, graphs_bytes, logits_bytes, part_bytes
from common.engine.runner import Model, Runner
from common.engine.sizing import Sizes
from common.ids import Role
from common.kv.cache import KVCache
from common.kv.layout import pages_for


def measured(
    model: Model,
    size: Sizes,
    config: WorkerConfig,
    n_vocab: int,
    device: torch.device,
    common_bytes: int = 0,
) -> Needs:
    """With the model's weights, and nothing else, on the device; `common_bytes` of them in a copy
    that the configuration's workers share there, which torch does not count. What is measured is
    what this process has taken, whoever else is there."""
    n_tokens = min(config.max_num_batched_tokens, size.max_model_len - 1)
    n_pages = pages_for(n_tokens + 1, size.kv.page_tokens)
    own_bytes = torch.cuda.memory_allocated(device)
    pages = torch.zeros((n_pages, size.kv.page_bytes), dtype=torch.uint8, device=device)
    torch.cuda.reset_peak_memory_stats(device)
    Runner(model, KVCache(size.kv, pages)).warm_up(n_tokens)
    torch.cuda.synchronize(device)
    taken_bytes = torch.cuda.max_memory_reserved(device) - own_bytes - pages.nbytes
    del pages
    torch.cuda.empty_cache()
    of_graphs = 0
    if config.role is Role.DECODE:
        of_graphs = graphs_bytes(taken_bytes, config.max_num_seqs, n_vocab)
        of_graphs += draws_bytes(config.max_num_seqs, n_vocab)
    return Needs(
        weights_bytes=own_bytes + part_bytes(common_bytes, config.gpu_sharers),
        activations_bytes=taken_bytes + logits_bytes(config.max_num_seqs, n_vocab),
        graphs_bytes=of_graphs,
    )
