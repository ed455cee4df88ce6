"""transformers as the judge of greedy answers.

`generate` draws the token with the highest logit, given the prompt and what it drew before. So an
answer is `generate`'s exactly if each of its tokens is the one that the model puts first given the
prompt and *the answer's own* tokens before it: by induction, up to any token, both sequences are
the same. One pass over prompt and answer yields all these logits at once, which costs a fortieth
of generating. The two ways differ in rounding (a few 1e-5 in a logit), far below the 1e-3 that
counts as a tie, where the oracle is led down our token.

Traps: `generate` guesses an attention mask from the padding id, which chats contain (pass one of
ones); transformers takes most of a minute to import the GGUF file, so its model is filled from our
own reader of weights, which `tests/system/test_default_weights.py` holds equal to that import.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import sched_getaffinity
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from common.model.gguf_weights import GgufSource
from common.model.spec import NoScaling

TIE_LOGITS = 1e-3
TOKENS_PER_TIE = 2000  # more ties than one in so many are a failure

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """How far an answer is the oracle's: to its end, or up to the token at `differs_at`."""

    n_tokens: int
    n_ties: int
    differs_at: int | None = None
    wanted: int | None = None  # the oracle's token there
    by_logits: float = 0.0  # how much higher it is than ours


class Oracle:
    """A Llama of transformers in float32, from a GGUF file of architecture `llama`."""

    def __init__(self, path: Path) -> None:
        self.model = _model(GgufSource(path))

    @torch.inference_mode()
    def judge(self, prompt: Ids, answer: Ids) -> Verdict:
        logits_TV = self._logits(prompt, answer)
        ours_T = logits_TV.gather(1, torch.tensor(answer)[:, None])[:, 0]
        best_T, wanted_T = logits_TV.max(-1)
        behind_T = best_T - ours_T
        n_ties = 0
        for at, token in enumerate(answer):
            if wanted_T[at] == token:
                continue
            if behind_T[at] >= TIE_LOGITS:
                return Verdict(at, n_ties, at, int(wanted_T[at]), float(behind_T[at]))
            n_ties += 1
        return Verdict(len(answer), n_ties)

    def _logits(self, prompt: Ids, answer: Ids) -> Tensor:
        """[len(answer), V]: row n from the prompt and the first n tokens of the answer."""
        ids = torch.tensor([[*prompt, *answer[:-1]]])
        output = self.model(
            ids, attention_mask=torch.ones_like(ids), logits_to_keep=len(answer), use_cache=False
        )
        return output.logits[0]

    @torch.inference_mode()
    def generate(self, prompt: Ids, n_tokens: int) -> list[int]:
        """Greedy, past any end of text."""
        ids = torch.tensor([[*prompt]])
        output = self.model.generate(  # pyright: ignore[reportAttributeAccessIssue] a mixin's
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=n_tokens,
            min_new_tokens=n_tokens,
            eos_token_id=None,
            pad_token_id=0,
        )
        return output[0, len(prompt) :].tolist()


def check(oracle: Oracle, prompts: Mapping[str, Ids], answers: Mapping[str, Ids]) -> None:
    """Fail unless every answer is the oracle's, but for ties that are few."""
    with ThreadPoolExecutor(len(sched_getaffinity(0))) as threads:
        judged = threads.map(lambda name: oracle.judge(prompts[name], answers[name]), answers)
    verdicts = dict(zip(answers, judged, strict=True))
    wrong = {name: v for name, v in verdicts.items() if v.differs_at is not None}
    assert not wrong, "\n".join(f"{name}: {verdict}" for name, verdict in wrong.items())
    n_tokens = sum(v.n_tokens for v in verdicts.values())
    n_ties = sum(v.n_ties for v in verdicts.values())
    assert n_ties * TOKENS_PER_TIE <= n_tokens, f"{n_ties} ties in {n_tokens} tokens"


def _model(source: GgufSource) -> LlamaForCausalLM:
    spec = source.spec
    assert isinstance(spec.rope_scaling, NoScaling)
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.n_layers,
        num_attention_heads=spec.n_heads,
        num_key_value_heads=spec.n_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context_tokens,
        rms_norm_eps=spec.rms_norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        tie_word_embeddings=spec.tied_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    weights = dict(model.named_parameters())
    with torch.no_grad():
        for name in source.shapes():
            source.read_into(name, weights.pop(name).data)
    assert not weights, f"no weights for {sorted(weights)}"
    return model
