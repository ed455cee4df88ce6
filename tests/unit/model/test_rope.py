"""RoPE tables against transformers' own frequencies, which are float32."""

import json

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from common.model.hf_config import spec_from_config
from common.model.rope import cos_sin_table, inverse_frequencies

HEAD_DIM = 64
N_POSITIONS = 256
ORIGINAL = {"original_max_position_embeddings": 64}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 3.0},
    {"rope_type": "yarn", "factor": 4.0, **ORIGINAL},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.2, **ORIGINAL},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False, "beta_fast": 16.0, **ORIGINAL},
    {"rope_type": "llama3", "factor": 8.0, **BANDS, **ORIGINAL},
    {
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 32 for i in range(32)],
        "long_factor": [1.0 + i for i in range(32)],
        **ORIGINAL,
    },
]


def config_of(scaling: dict[str, object]) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        max_position_embeddings=N_POSITIONS,
        rope_parameters={"rope_theta": 50_000.0, **scaling},
    )


@pytest.mark.parametrize("max_model_len", [48, 1024])  # below and beyond what each was made for
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
def test_frequencies_are_those_of_transformers(
    scaling: dict[str, object], max_model_len: int
) -> None:
    config = config_of(scaling)
    theirs_D2, magnitude = ROPE_INIT_FUNCTIONS[str(scaling["rope_type"])](
        config, seq_len=max_model_len
    )
    spec = spec_from_config(json.dumps(config.to_dict()).encode())
    ours_D2, our_magnitude = inverse_frequencies(spec, max_model_len)
    torch.testing.assert_close(ours_D2.float(), theirs_D2, rtol=2e-6, atol=0)
    assert our_magnitude == pytest.approx(magnitude, rel=1e-12)


def test_the_table_holds_cosines_then_sines_times_the_magnitude() -> None:
    spec = spec_from_config(json.dumps(config_of(SCALINGS[2]).to_dict()).encode())
    freqs_D2, magnitude = inverse_frequencies(spec, 100)
    table_LD = cos_sin_table(spec, 100)
    assert table_LD.shape == (100, HEAD_DIM)
    assert table_LD.dtype == torch.float32
    assert torch.equal(table_LD[0], torch.cat((torch.ones(32), torch.zeros(32))) * magnitude)
    angles_D2 = 99 * freqs_D2
    assert torch.equal(table_LD[99, :32], (angles_D2.cos() * magnitude).float())
    assert torch.equal(table_LD[99, 32:], (angles_D2.sin() * magnitude).float())


def test_a_longer_limit_changes_no_row_unless_the_scaling_follows_it() -> None:
    """Law 3: a token's KV depends on its own prefix, never on the length of the sequence."""
    changed = {
        str(scaling["rope_type"])
        for scaling in SCALINGS
        if (spec := spec_from_config(json.dumps(config_of(scaling).to_dict()).encode()))
        and not torch.equal(cos_sin_table(spec, 48), cos_sin_table(spec, 1024)[:48])
    }
    assert changed == {"dynamic", "longrope"}
