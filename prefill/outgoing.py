"""What a prefill worker says: messages built from its records. Decides nothing, sends nothing."""

from common.messages import Failed, FailureKind, Handoff, Listed, PagesReady, TokenRun, Tokens
from common.messages import Phase as WirePhase
from common.params import TokenLogprob
from prefill.handoff import Lease
from prefill.state import Phase, Prompt, prompt_top


def pages_ready(prompt: Prompt, lease: Lease) -> PagesReady:
    """Cumulative: all that was announced under the lease."""
    return PagesReady(
        transfer=prompt.transfer,
        attempt=prompt.attempt,
        first=lease.first,
        pages=tuple(lease.refs),
    )


def handoff(prompt: Prompt, lease: Lease) -> Handoff:
    """Complete in itself, so that it can be repeated. The prompt is computed and announced."""
    return Handoff(
        transfer=prompt.transfer,
        attempt=prompt.attempt,
        n_tokens=len(prompt.tokens),
        first=lease.first,
        pages=tuple(lease.refs),
        tokens=prompt.handed,
        cached_tokens=prompt.cached,
    )


def first_tokens(prompt: Prompt) -> Tokens:
    """They go straight to the gateway: the client does not wait for the handoff."""
    scores = _scores(prompt)
    return Tokens(
        runs=tuple(
            TokenRun(
                prompt.transfer,
                prompt.attempt,
                token.sample,
                len(resume.outputs),
                (token.token,),
                token.finish,
                () if token.logprob is None else (token.logprob,),
                prompt.cached,
                scores,
            )
            for token, resume in zip(prompt.handed, prompt.request.samples, strict=True)
        )
    )


def _scores(prompt: Prompt) -> tuple[TokenLogprob | None, ...] | None:
    """Of the prompt's tokens, where asked for; none for the first."""
    return None if prompt_top(prompt.request) is None else (None, *prompt.scored)


def failed(prompt: Prompt) -> Failed:
    """Why this attempt cannot go on here."""
    return Failed(
        transfer=prompt.transfer,
        attempt=prompt.attempt,
        kind=FailureKind.COMPUTE,
        detail=prompt.failure,
        alone=prompt.failed_alone,
    )


def line(prompt: Prompt) -> Listed:
    """The prompt's line in a digest."""
    match prompt.phase:
        case Phase.COMPUTED if prompt.accept is not None:
            phase = WirePhase.HANDED
        case Phase.ANSWERED | Phase.FAILED:
            phase = WirePhase.DONE
        case _ if prompt.accept is not None:
            phase = WirePhase.ACCEPTED
        case _:
            phase = WirePhase.WAITING
    return Listed(prompt.transfer, prompt.attempt, phase)
