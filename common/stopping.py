"""When a sample ends, as far as token ids can tell. Pure; stop strings are the gateway's alone."""

from common.params import FinishReason, SamplingParams


def token_rules(
    params: SamplingParams, n_outputs: int, token: int, *, n_prompt: int, max_model_len: int
) -> FinishReason | None:
    """Why the sample ends with `token`, its `n_outputs`-th output (from 1); None: it goes on.

    An end or stop token says STOP even where a length is reached with it. LENGTH: `max_tokens`
    outputs, or a context that has no position left for `token` to be read at.
    """
    if token in params.end_token_ids or token in params.stop_token_ids:
        return FinishReason.STOP
    if n_outputs >= params.max_tokens or n_prompt + n_outputs >= max_model_len:
        return FinishReason.LENGTH
    return None
