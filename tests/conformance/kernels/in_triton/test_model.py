"""A whole model in the kernels of GPUs: its passes are those of `transformers`, and in float32 a
row's bits are its own, in whatever pass it is computed (law 3)."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from bench.fp8_pages import Fp8Pages
from common.kernels.triton import choice
from common.kv.layout import FP8
from common.model.device_weights import device_weights
from common.model.load import load_model
from common.model.packing import packed_layout, place
from tests.property.invariance import World
from tests.system.one_sequence import OneSequence

pytestmark = pytest.mark.usefixtures("path")

N_TOKENS = 40
CONFIG = LlamaConfig(
    vocab_size=160,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=N_TOKENS,
)
TOKENS = random.Random(0).choices(range(3, 160), k=N_TOKENS)


@pytest.fixture(scope="module")
def oracle() -> PreTrainedModel:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5)
    return model


@pytest.fixture(scope="module")
def directory(oracle: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    oracle.save_pretrained(path)
    return path


def test_logits_are_those_of_transformers(oracle: PreTrainedModel, directory: Path) -> None:
    loaded = load_model(directory, torch.float32, None, N_TOKENS)
    sequence = OneSequence(loaded.model, N_TOKENS)
    parts = [sequence.run(TOKENS[at:end]) for at, end in ((0, 20), (20, 21), (21, 40))]
    with torch.inference_mode():
        wanted = oracle(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(torch.cat(parts), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_with_pages_of_fp8_logits_are_near_and_bits_a_row_s_own(
    oracle: PreTrainedModel, directory: Path
) -> None:
    """Whatever is cut where; and near what rounding pages so makes of them elsewhere."""
    loaded = load_model(directory, torch.float32, None, N_TOKENS)
    whole = OneSequence(loaded.model, N_TOKENS, FP8).run(TOKENS)
    sequence = OneSequence(loaded.model, N_TOKENS, FP8)
    parts = [sequence.run(TOKENS[at:end]) for at, end in ((0, 20), (20, 21), (21, 40))]
    assert torch.equal(torch.cat(parts), whole)
    with torch.inference_mode():
        exact = oracle(torch.tensor([TOKENS])).logits[0]
    choice.interpret(wanted=False)
    emulated = OneSequence(loaded.model, N_TOKENS)
    emulated.runner.model = Fp8Pages(loaded.model)
    wanted = emulated.run(TOKENS)
    off, rounded = ((x - y).square().mean().sqrt() for x, y in ((whole, wanted), (wanted, exact)))
    assert 1e-3 < rounded < 0.1 * exact.std()
    assert off < rounded / 3  # where a number is near a tie, a last bit decides


@pytest.mark.full
def test_bits_are_a_row_s_own_in_any_pass(directory: Path) -> None:
    model = load_model(directory, torch.float32, None, N_TOKENS).model
    world = World(model, 4, 40, random.Random(0))
    for tokens in (TOKENS, TOKENS[30:35], TOKENS[:12]):
        world.start(tokens)
    for sizes in ((20, 4, 1), (1, 1, 8), (18, 3), (1,)):
        left = [s for s in world.running if s.left]
        world.step([(s, min(n, s.left)) for s, n in zip(left, sizes, strict=False)], threads=1)
    assert not any(s.left for s in world.running)


def test_weights_are_placed_on_a_device_in_one_piece(directory: Path) -> None:
    """The CPU in the place of one."""
    spec = load_model(directory, torch.float32, None, N_TOKENS).spec
    placed, n_bytes = place(packed_layout(spec), torch.float16)
    filled: list[str] = []
    weights = device_weights(
        placed, n_bytes, torch.float16, lambda tensors: filled.extend(tensors), torch.device("cpu")
    )
    assert filled == [entry.packed.name for entry in placed]
    for entry in placed:
        tensor = weights[entry.packed.name]
        assert isinstance(tensor, torch.Tensor)
        assert (tensor.shape, tensor.dtype) == (entry.packed.shape, torch.float16)
    first = weights[placed[0].packed.name]
    last = weights[placed[-1].packed.name]
    assert isinstance(first, torch.Tensor)
    assert isinstance(last, torch.Tensor)
    assert last.data_ptr() - first.data_ptr() == placed[-1].offset
