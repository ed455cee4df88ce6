"""Small model directories in Hugging Face's form, written for a test."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from common.text.merges import listed_merges, merges_by_score
from tests.unit.text.llama_cpp import byte_level_metadata, sentencepiece_metadata

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 2048,
    "max_position_embeddings": 512,
    "eos_token_id": 5,
}


def byte_level_backend() -> tokenizers.Tokenizer:
    """As GPT-2's; the last four tokens are `<s>`, `</s>`, `<|end|>` and, not special, `<user>`."""
    metadata = byte_level_metadata()
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    ids = {token: n for n, token in enumerate(tokens)}
    merges = listed_merges(metadata["tokenizer.ggml.merges"], ids)
    backend = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in tokens[-4:-1]])
    backend.add_tokens([AddedToken(tokens[-1], normalized=False)])
    return backend


def sentencepiece_backend() -> tokenizers.Tokenizer:
    """As Llama 2's."""
    metadata = sentencepiece_metadata()
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    model = models.BPE(
        vocab={token: n for n, token in enumerate(tokens)},
        merges=merges_by_score(tokens, metadata["tokenizer.ggml.scores"]),
        byte_fallback=True,
        fuse_unk=True,
        unk_token="<unk>",
    )
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    backend.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def write_directory(path: Path, backend: tokenizers.Tokenizer, **files: dict[str, Any]) -> Path:
    """`files` are JSON files by their stem; `config` and `tokenizer` are there unless given."""
    backend.save(str(path / "tokenizer.json"))
    for stem, content in ({"config": CONFIG} | files).items():
        (path / f"{stem}.json").write_text(json.dumps(content), "utf-8")
    return path
