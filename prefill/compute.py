"""Prompts become pages: reserving them, finding or fetching a prefix, building passes, committing.

Owns every hold that a prompt has on its own pages; leases have theirs (`prefill.handoff`). Sends
nothing and tells nobody.
"""

from collections.abc import Sequence

from common.engine.plan import Draw, Drawn, PassPlan, PassResult, Piece, ScorePrompt, pack
from common.ids import PageHash, PageId, StepId, TicketId, TransferId
from common.kv.layout import pages_for
from common.kv.pages import PagePool
from common.kv.prefix import PendingPages, page_hashes
from common.messages import HandedToken, PageRef, Prefill
from common.stopping import token_rules
from prefill.scheduler import Chunk
from prefill.state import Phase, Prompt, prompt_top

Key = tuple[TransferId, int]


class Compute:
    """The pool as the prompts of one worker use it."""

    def __init__(
        self, pool: PagePool, *, page_tokens: int, max_model_len: int, fingerprint: str, cache: bool
    ) -> None:
        self.pool = pool
        self.page_tokens = page_tokens
        self._max_model_len = max_model_len
        self._fingerprint = fingerprint
        self._cache = cache
        self._pending: PendingPages[Key] = PendingPages()

    def names(self, request: Prefill, tokens: tuple[int, ...]) -> tuple[tuple[PageHash, ...], int]:
        """Hashes of the full pages, and how many leading pages may come from a cache.

        The last token is always computed (its logits draw the first output), and so is the whole
        prompt where its log-probabilities are asked for.
        """
        if not self._cache or prompt_top(request) is not None:
            return (), 0
        hashes = page_hashes(
            tokens, self.page_tokens, fingerprint=self._fingerprint, salt=request.salt
        )
        return hashes, (len(tokens) - 1) // self.page_tokens

    def found(self, prompt: Prompt) -> tuple[PageId, ...]:
        """Leading pages that are in the pool now."""
        return self.pool.longest_prefix(prompt.hashes[: prompt.reusable])

    def is_coming(self, prompt: Prompt) -> bool:
        """Somebody else is computing or fetching the next page that this prompt could share."""
        at = len(self.found(prompt))
        if at >= prompt.reusable:
            return False
        return self._pending.bringer(prompt.hashes[at]) not in (None, prompt.key)

    def wait(self, prompt: Prompt) -> None:
        """It is in line: what is here of its prefix is worth more than what nobody waits for."""
        prompt.wants = True
        self.pool.want(prompt.hashes[: prompt.reusable])

    def _waits_no_more(self, prompt: Prompt) -> None:
        if prompt.wants:
            prompt.wants = False
            self.pool.unwant(prompt.hashes[: prompt.reusable])

    def reserve(self, prompt: Prompt) -> tuple[tuple[PageRef, PageId], ...]:
        """Take the whole prompt's pages. Callers have checked that as many are available.

        Returns what to pull from the decode side: pages that it holds and we do not.
        """
        own = self.found(prompt)
        for page in own:
            self.pool.share(page)
        self._waits_no_more(prompt)
        total = pages_for(len(prompt.tokens), self.page_tokens)
        prompt.pages = [*own, *self.pool.take(total - len(own))]
        self._found(prompt, len(own))
        for page_hash in prompt.hashes[len(own) :]:
            self._pending.claim(page_hash, prompt.key)
        held = prompt.accept.held[: prompt.reusable] if prompt.accept is not None else ()
        prompt.fetching = (len(own), max(len(own), len(held)))
        return tuple(zip(held[len(own) :], prompt.pages[len(own) :], strict=False))

    def fetched(self, prompt: Prompt, *, ok: bool) -> None:
        """The pull is final. What did not arrive is computed like anything else."""
        prompt.ticket = None
        if ok:
            end = prompt.fetching[1]
            self._publish(prompt, end)
            self._found(prompt, end)

    def _found(self, prompt: Prompt, n_pages: int) -> None:
        prompt.published = max(prompt.published, n_pages)
        prompt.done = prompt.planned = prompt.cached = n_pages * self.page_tokens

    def build(self, chunks: Sequence[Chunk], step: StepId) -> PassPlan:
        """The pass that computes the chunks; draws where a prompt ends, scores where asked."""
        pieces = [
            Piece(c.prompt.tokens[c.prompt.planned : c.end], c.prompt.planned, c.prompt.pages)
            for c in chunks
        ]
        arrays = pack(pieces, self.page_tokens)
        draws: list[Draw] = []
        scores: list[ScorePrompt] = []
        for chunk, piece in zip(chunks, pieces, strict=True):
            prompt, request = chunk.prompt, chunk.prompt.request
            n_top = prompt_top(request)
            targets = prompt.tokens[prompt.planned + 1 : chunk.end + 1]
            if n_top is not None and targets:
                scores.append(
                    ScorePrompt(
                        transfer=prompt.transfer,
                        attempt=prompt.attempt,
                        first_row=piece.first_row,
                        targets=targets,
                        n_top=n_top,
                    )
                )
            if chunk.end == len(prompt.tokens):
                last_row = piece.first_row + len(piece.tokens) - 1
                draws += _first_draws(prompt, last_row)
            prompt.step = step
            prompt.planned = chunk.end
        return PassPlan(**arrays, draws=tuple(draws), scores=tuple(scores))  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does

    def commit(self, chunks: Sequence[Chunk], plan: PassPlan, result: PassResult) -> list[Prompt]:
        """The pass is computed. Returns the live prompts it was for, further on than before."""
        drawn = {
            (d.transfer, d.attempt, d.sample): got
            for d, got in zip(plan.draws, result.drawn, strict=True)
        }
        scored = {
            (s.transfer, s.attempt): got for s, got in zip(plan.scores, result.scores, strict=True)
        }
        live = [c for c in chunks if c.prompt.phase is Phase.RUNNING]
        for chunk in live:
            prompt = chunk.prompt
            prompt.done = chunk.end
            prompt.scored += scored.get(prompt.key, ())
            self._publish(prompt, prompt.done // self.page_tokens)
            if prompt.done == len(prompt.tokens):
                prompt.handed = tuple(
                    self._hand(prompt, resume.sample, len(resume.outputs), drawn)
                    for resume in prompt.request.samples
                )
        return [c.prompt for c in live]

    def _publish(self, prompt: Prompt, n_full: int) -> None:
        for at in range(prompt.published, min(n_full, len(prompt.hashes))):
            self.pool.publish(prompt.pages[at], prompt.hashes[at])
            self._pending.done(prompt.hashes[at])
        prompt.published = max(prompt.published, n_full)

    def _hand(
        self,
        prompt: Prompt,
        sample: int,
        n_outputs: int,
        drawn: dict[tuple[TransferId, int, int], Drawn],
    ) -> HandedToken:
        got = drawn[(*prompt.key, sample)]
        finish = token_rules(
            prompt.request.params,
            n_outputs + 1,
            got.token,
            n_prompt=len(prompt.request.prompt),
            max_model_len=self._max_model_len,
        )
        return HandedToken(sample, got.token, finish, got.logprob)

    def give_back(self, prompt: Prompt) -> None:
        """The one exit of a prompt's own holds; whatever may still write them fences them."""
        self._waits_no_more(prompt)
        self._pending.failed(prompt.key)
        fence = None
        if prompt.step is not None:
            fence = step_fence(prompt.step)
        elif prompt.ticket is not None:
            fence = ticket_fence(prompt.ticket)
        self.pool.give_back(prompt.pages, fence=fence)
        prompt.pages = []
        prompt.done = prompt.planned = prompt.published = 0


def step_fence(step: StepId) -> tuple[str, StepId]:
    """Final when the step is."""
    return ("step", step)


def ticket_fence(ticket: TicketId) -> tuple[str, TicketId]:
    """Final when the pull is."""
    return ("ticket", ticket)


def _first_draws(prompt: Prompt, row: int) -> list[Draw]:
    request = prompt.request
    return [
        Draw(
            transfer=prompt.transfer,
            attempt=prompt.attempt,
            sample=resume.sample,
            index=len(resume.outputs),
            row=row,
            params=request.params,
            prompt=request.prompt,
            outputs=resume.outputs,
        )
        for resume in request.samples
    ]
