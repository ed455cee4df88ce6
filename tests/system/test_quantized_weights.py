"""The default model with its weights kept quantised, beside the same in bfloat16."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from common.kernels.cpu import native
from common.model.load import load_model
from common.values import Quantization
from tests.system.one_sequence import OneSequence

pytestmark = [
    pytest.mark.slow,  # three models are read
    pytest.mark.skipif(not native.available(), reason="without kernels they are not kept"),
]

PROMPT = [1, 4093, 198, 28120, 346, 260, 3575, 282, 4649, 47, 2, 198, *range(900, 1000)]
N_STEPS = 24


def logits(path: Path, quantization: Quantization) -> tuple[Tensor, Tensor, int]:
    """Of a prompt in one pass and of tokens one by one after it; bytes of the weights."""
    loaded = load_model(path, torch.bfloat16, None, 1024, quantization=quantization)
    sequence = OneSequence(loaded.model, len(PROMPT) + N_STEPS)
    prompt_TV = sequence.run(PROMPT)
    steps_TV = torch.cat([sequence.run([token]) for token in range(500, 500 + N_STEPS)])
    return prompt_TV, steps_TV, loaded.weights_bytes


def distance(a_TV: Tensor, b_TV: Tensor) -> float:
    return float((a_TV - b_TV).norm() / b_TV.norm())


def test_logits_are_bfloat16s_and_memory_is_what_the_formats_take(default_model: Path) -> None:
    prompt_TV, steps_TV, n_bytes = logits(default_model, "none")
    by_gguf, by_int8 = logits(default_model, "gguf"), logits(default_model, "int8")
    assert distance(by_gguf[0], prompt_TV) <= 1e-2
    assert distance(by_gguf[1], steps_TV) <= 1e-2
    assert distance(by_int8[0], prompt_TV) <= 4e-2
    assert distance(by_int8[1], steps_TV) <= 4e-2
    assert by_gguf[2] <= 0.36 * n_bytes  # 5 bits a weight, 8.5 of the embeddings
    assert by_int8[2] <= 0.51 * n_bytes
