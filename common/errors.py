"""The error tree: the class says who must act, the text carries the numbers with their units.

    BatonError
    ├── ClientError            the request is wrong: 4xx, never retried
    │   └── ContextOverflow    it does not fit the model's context
    ├── SetupError             the operator must act: shown in one line, exit code 2
    │   └── UnsupportedModel   no code here runs this model
    ├── PeerError              another process is at fault: retried, then 503
    │   └── PeerRefused        a hello named two values that must be equal
    ├── Overloaded             a bound was reached: 429 or 503 with Retry-After
    │   └── SloMissed          its first token would come too late: 429
    │       ├── SloHopeless    and would on an idle server: no Retry-After
    │       └── TpotMissed     its tokens would follow each other too slowly
    │           └── TpotHopeless   and would on an idle server: no Retry-After
    ├── TimedOut               the time that the request gave itself has passed: 504
    └── InvariantBroken        ours: a bug; the process stops rather than go on

Must import nothing.
"""


class BatonError(Exception):
    """Root of every error that Baton raises on purpose."""


class ClientError(BatonError):
    """The request is wrong. `param` names the field, the message its value and the remedy."""

    def __init__(self, message: str, *, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


class ContextOverflow(ClientError):
    """Prompt and output do not fit the model's context together."""

    def __init__(self, n_prompt: int, max_tokens: int, max_model_len: int, *, param: str) -> None:
        unit = "token" if n_prompt == 1 else "tokens"
        super().__init__(
            f"This model's maximum context length is {max_model_len} tokens, but "
            f"{n_prompt} {unit} of prompt and {max_tokens} of output were asked for "
            f"({n_prompt + max_tokens} in all). Shorten the prompt or lower max_tokens.",
            param=param,
        )


class SetupError(BatonError):
    """The operator must act: a flag, a file or a machine is not as it must be."""


class UnsupportedModel(SetupError):
    """No code here runs this model. The message lists what is supported."""


class PeerError(BatonError):
    """Another process is at fault. The request may be tried again."""


_SET_BY = {
    "model": "--model and --served-model-name",
    "model fingerprint": "--model",
    "kv_dtype": "--dtype and --kv-cache-dtype",
    "block_size": "--block-size",
    "page_layout": "--block-size, --dtype and --model",
    "kernel_path": "the processor and --quantization; in bfloat16 they may differ",
    "protocol": "the version of Baton",
}


class PeerRefused(PeerError):
    """Two processes disagree on something that must be equal; both values are named."""

    def __init__(self, field: str, ours: str, theirs: str) -> None:
        remedy = f" (set by {_SET_BY[field]})" if field in _SET_BY else ""
        super().__init__(f"refused: {field} differs: ours is {ours}, theirs is {theirs}{remedy}")
        self.field = field
        self.ours = ours
        self.theirs = theirs


class Overloaded(BatonError):
    """A bound was reached, before any work was done.

    `retry_after_s` is the predicted wait; None: to come again is no use.
    """

    def __init__(self, message: str, *, retry_after_s: float | None, status: int = 429) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.status = status


class SloMissed(Overloaded):
    """Refused before any work: the first token is predicted to come later than is owed."""

    param = "slo.ttft_ms"

    def __init__(self, ttft_s: float, predicted_s: float, *, retry_after_s: float) -> None:
        super().__init__(
            f"the first token is predicted after {predicted_s * 1e3:.0f} ms, and is owed after "
            f"{ttft_s * 1e3:g} ms (slo.ttft_ms, or the server's --slo-ttft); come again later, "
            "state a longer time, or shorten the prompt",
            retry_after_s=retry_after_s,
        )


class SloHopeless(SloMissed):
    """Refused likewise, and it would come too late if nothing were before it. `idle_s`: then."""

    def __init__(self, ttft_s: float, idle_s: float) -> None:
        Overloaded.__init__(
            self,
            f"even an idle server would take {idle_s * 1e3:.0f} ms for this prompt, and its first "
            f"token is owed after {ttft_s * 1e3:g} ms (slo.ttft_ms, or the server's --slo-ttft); "
            "state a longer time, or shorten the prompt",
            retry_after_s=None,
        )


class TpotMissed(SloMissed):
    """Refused likewise: the tokens after the first are predicted to take longer than is owed."""

    param = "slo.tpot_ms"

    def __init__(self, tpot_s: float, predicted_s: float, *, retry_after_s: float) -> None:
        Overloaded.__init__(
            self,
            f"a token is predicted to take {predicted_s * 1e3:.0f} ms, and {tpot_s * 1e3:g} ms are "
            "owed (slo.tpot_ms, or the server's --slo-tpot); come again later, or state a longer "
            "time",
            retry_after_s=retry_after_s,
        )


class TpotHopeless(TpotMissed):
    """Refused likewise, and they would if nothing were beside it. `idle_s`: what a token takes."""

    def __init__(self, tpot_s: float, idle_s: float) -> None:
        Overloaded.__init__(
            self,
            f"even an idle server would take {idle_s * 1e3:.3g} ms for a token, and "
            f"{tpot_s * 1e3:g} ms are owed (slo.tpot_ms, or the server's --slo-tpot); state a "
            "longer time",
            retry_after_s=None,
        )


class TimedOut(BatonError):
    """The time that the request gave itself has passed; what was begun for it is given up."""

    param = "timeout_s"

    def __init__(self, timeout_s: float) -> None:
        super().__init__(
            f"timeout_s is {timeout_s:g}, and the answer is not complete; state a longer time, or "
            "ask for fewer tokens"
        )


class InvariantBroken(BatonError):
    """A law does not hold: a bug of ours. Never caught to go on."""
