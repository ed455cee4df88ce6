"""What keeping weights or pages in another format costs in quality: perplexities of a text.

    python -m bench.perplexity MODEL [--text /usr/share/common-licenses/GPL-3] [--steps]
                               [--dtype bfloat16] [--quantization none int8 gguf]
                               [--kv-cache-dtype auto fp8] [--threads 2]

MODEL is a .gguf file or a Hugging Face directory. The text (the default one ships with Debian) is
cut into windows that are scored each by itself, all but their first token. A window is computed in
one pass, as prompts are; with --steps token by token, as answers are. Pages of fp8 are emulated
(`bench.fp8_pages`). The first of the formats is what the others are compared with, also by how
often the most likely token is the same. The last line is JSON. Drives `common` only.
"""

import argparse
import json
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np
import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import Tensor

from bench import reasons
from bench.flag_types import Parser, model_path, positive
from bench.fp8_pages import Fp8Pages
from bench.program import exit_status
from common.engine.plan import PassPlan, Piece, pack
from common.engine.runner import Runner
from common.engine.sizing import kv_spec
from common.errors import SetupError
from common.ids import PageId
from common.kernels import ops
from common.kv.cache import TORCH_DTYPES, KVCache
from common.kv.layout import pages_for
from common.model.gguf_file import GgufFile
from common.model.load import LoadedModel, load_model
from common.values import Quantization

PAGE_TOKENS = 16
LOGITS_ROWS = 64  # in memory at once

# T rows of a pass  H hidden  R rows whose logits are computed  V vocabulary


def token_ids(model: Path, text: str) -> list[int]:
    """Byte-level BPE is all that is known of a GGUF file's tokenizers here."""
    if model.is_dir():
        own = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
        return own.encode(text, add_special_tokens=False).ids
    metadata = GgufFile(model).metadata
    if metadata["tokenizer.ggml.model"] != "gpt2":
        raise SetupError(f"{model}: the tokenizer is not byte-level BPE; name a directory")
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    ids = {str(token): i for i, token in enumerate(tokens)}
    pairs = [tuple(str(merge).split(" ", 1)) for merge in merges]
    bpe = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=pairs))  # pyright: ignore[reportArgumentType] of two strings each
    bpe.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue] its stubs know no setter
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return bpe.encode(text).ids


class Scorer:
    """A model and a pool for one window."""

    def __init__(
        self, loaded: LoadedModel, dtype: str, n_tokens: int, *, fp8: bool = False
    ) -> None:
        spec = loaded.spec
        kv = kv_spec(spec, dtype, PAGE_TOKENS)
        n_pages = pages_for(n_tokens, PAGE_TOKENS)
        self.pages = [PageId(page) for page in range(n_pages)]
        self.model = Fp8Pages(loaded.model) if fp8 else loaded.model
        pages = np.zeros((n_pages, kv.page_bytes), np.uint8)
        self.runner = Runner(self.model, KVCache(kv, pages))
        self.likeliest: list[int] = []  # tokens, in the order of what was scored

    def loss(self, window: list[int], n_at_once: int) -> float:
        """The sum of all tokens' negative log-likelihoods but the first's."""
        targets_T = torch.tensor(window[1:])
        total = 0.0
        for first, hidden_TH in self._hidden(window[:-1], n_at_once):
            for at in range(0, len(hidden_TH), LOGITS_ROWS):
                logits_RV = self.model.logits(hidden_TH[at : at + LOGITS_ROWS]).double()
                begin = first + at
                targets_R = targets_T[begin : begin + len(logits_RV)]
                chosen_R = logits_RV.gather(1, targets_R[:, None]).squeeze(1)
                total += float((logits_RV.logsumexp(-1) - chosen_R).sum())
                self.likeliest += logits_RV.argmax(-1).tolist()
        return total

    def _hidden(self, tokens: list[int], n_at_once: int) -> Iterator[tuple[int, Tensor]]:
        for first in range(0, len(tokens), n_at_once):
            piece = Piece(tokens[first : first + n_at_once], first, self.pages)
            plan = PassPlan(**pack([piece], PAGE_TOKENS))  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does
            yield first, self.runner.hidden(plan)


def perplexity(scorer: Scorer, windows: list[list[int]], n_at_once: int) -> float:
    n_scored = sum(len(window) - 1 for window in windows)
    return math.exp(sum(scorer.loss(window, n_at_once) for window in windows) / n_scored)


@torch.inference_mode()
def main(argv: Sequence[str]) -> int:
    """Score a text by every format."""
    parser = Parser(
        prog="python -m bench.perplexity",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("model", type=model_path)
    parser.add_argument("--text", type=Path, default=Path("/usr/share/common-licenses/GPL-3"))
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(TORCH_DTYPES))
    parser.add_argument("--window", type=positive, default=1024, help="tokens")
    parser.add_argument("--steps", action="store_true", help="compute token by token")
    parser.add_argument(
        "--quantization",
        nargs="+",
        default=["none", "int8"],
        choices=get_args(Quantization),
    )
    parser.add_argument(
        "--kv-cache-dtype", nargs="+", default=["auto"], choices=("auto", "fp8"), dest="pages"
    )
    given = parser.parse_all(argv)
    try:
        reasons.must_be_readable("--text", given.text)
    except ValueError as error:
        parser.error(str(error))
    ops.set_threads(given.threads, TORCH_DTYPES[given.dtype])
    ids = token_ids(given.model, given.text.read_text())
    windows = [ids[at : at + given.window] for at in range(0, len(ids) - 1, given.window)]
    found: dict[str, float] = {}
    alike: dict[str, float] = {}
    likeliest: list[int] = []  # by the first
    for kept, pages in product(given.quantization, given.pages):
        loaded = load_model(
            given.model, TORCH_DTYPES[given.dtype], None, given.window, quantization=kept
        )
        scorer = Scorer(loaded, given.dtype, given.window, fp8=pages == "fp8")
        name = kept if pages == "auto" else f"{kept}, pages of fp8"
        found[name] = perplexity(scorer, windows, 1 if given.steps else given.window)
        likeliest = likeliest or scorer.likeliest
        same = map(operator.eq, scorer.likeliest, likeliest)
        alike[name] = sum(same) / len(likeliest)
        first = next(iter(found))
        print(
            f"{name:>5}: {found[name]:.4f}, {found[name] / found[first]:.5f} x {first}; the "
            f"likeliest token is the same at {alike[name]:.2%}",
            flush=True,
        )
    print(
        json.dumps(
            {
                "text": str(given.text),
                "n_tokens": len(ids),
                "dtype": given.dtype,
                "kernels_rows": 1 if given.steps else given.window,
                "perplexity": found,
                "likeliest_alike": alike,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main, sys.argv[1:]))
