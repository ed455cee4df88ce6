"""Token ids as llama.cpp (llama-cpp-python 0.3.36, `llama_tokenize` with parse_special) gives them.

`llama_cpp.json` holds two small vocabularies in GGUF's terms, some texts, and llama.cpp's ids of
each text, special tokens added: for every kind of pre-tokenizer, for SentencePiece, for SmolLM2.
"""

import json
from pathlib import Path
from typing import Any

LLAMA_CPP: dict[str, Any] = json.loads(
    Path(__file__).with_name("llama_cpp.json").read_text("utf-8")
)

TEXTS: list[str] = LLAMA_CPP["texts"]


def byte_level_metadata(**changes: object) -> dict[str, Any]:
    """A byte-level BPE of some 700 tokens; 04, C0 and C1 have none. Keys without their prefix."""
    return _changed(LLAMA_CPP["byte_level_bpe"], changes)


def sentencepiece_metadata(**changes: object) -> dict[str, Any]:
    """A SentencePiece model of some 1,100 tokens, with all bytes."""
    return _changed(LLAMA_CPP["sentencepiece"], changes)


def _changed(metadata: dict[str, Any], changes: dict[str, object]) -> dict[str, Any]:
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
