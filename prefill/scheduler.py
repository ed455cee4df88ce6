"""Which chunks of which prompts make the next pass. Pure policy: state in, chunks out.

Continuous batching of variable-length chunks under a token budget (Orca's iteration-level
scheduling applied to prompts; chunks as in Sarathi-Serve). Order is earliest due first. A prompt
that states no deadline is due in proportion to its length, fixed when it arrives: a short question
passes a long document, and the document, growing overdue, cannot be passed for ever. How much of
the document a pass computes while questions with a stated TTFT come is `prefill.pace`'s to say.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from common.ids import TransferId
from common.kv.layout import pages_for
from common.messages import Limits
from prefill.state import Phase, Prompt

RETRY_MIN_S = 1.0
DUE_BASE_S = 0.5
DUE_PER_TOKEN_S = 0.002
TO_COMPUTE = (Phase.WAITING, Phase.FETCHING, Phase.RUNNING)
MayStart = Callable[[Prompt], bool]
SMALL_REST = 2  # a rest of 1/2 of a pass is not worth another one
UNACCEPTED_SHARE = 4  # computed prompts that decode has not accepted hold 1/4 of the pool at most


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute tokens[prompt.planned:end]. `starts`: reserve the prompt's pages first."""

    prompt: Prompt
    end: int
    starts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the next pass may use."""

    budget_tokens: int  # of the pass
    chunk_tokens: int  # of one prompt in the pass
    pass_tokens: int | None  # of the pass where somebody would wait for it too long; None: any
    max_num_seqs: int  # prompts in the pass
    page_tokens: int
    available_pages: int  # free, or cached and evictable
    unaccepted_pages: int  # held by prompts that decode has not accepted
    n_pages: int  # of the pool
    owed_at: float  # whoever decode waits for, and is due by then, is owed pages


def due_at(arrived: float, n_tokens: int, deadline_s: float | None) -> float:
    """When the first token is owed."""
    if deadline_s is not None:
        return arrived + deadline_s
    return arrived + DUE_BASE_S + DUE_PER_TOKEN_S * n_tokens


def order(prompt: Prompt) -> tuple[float, float, str]:
    """Earliest due first; ties by arrival, then by id, so that the order is total. Constant."""
    return (prompt.due, prompt.arrived, prompt.transfer)


def _owed(queue: Iterable[Prompt], owed_at: float) -> list[Prompt]:
    """Decode waits for them, and pages must be found for them."""
    overdue = takewhile(lambda p: p.due <= owed_at, queue)
    return [p for p in overdue if p.phase is Phase.WAITING and p.accept is not None]


def _need(prompt: Prompt, room: Room) -> int:
    return pages_for(len(prompt.tokens), room.page_tokens)


def to_set_back(queue: Sequence[Prompt], room: Room, may_start: MayStart) -> list[Prompt]:
    """Computed prompts whose pages an owed one must have, the latest due first.

    They are those that decode has not accepted: every other hold on a page ends by itself. They
    are computed again later (or found in the cache), and draw the same tokens. None where all of
    them would not do. Pages that they share are not freed: ask again, until nobody is set back.
    """
    in_vain = (p for p in _owed(queue, room.owed_at) if _need(p, room) > room.available_pages)
    owed = next((p for p in in_vain if may_start(p)), None)
    if owed is None:
        return []
    short = _need(owed, room) - room.available_pages
    victims: list[Prompt] = []
    for prompt in reversed(queue):
        if short > 0 and prompt.phase is Phase.COMPUTED and prompt.accept is None:
            victims.append(prompt)
            short -= len(prompt.pages)
    return victims if short <= 0 else []


def plan(queue: Sequence[Prompt], room: Room, may_start: MayStart) -> tuple[Chunk, ...]:
    """Chunks of the next pass, most urgent first. `queue`: all prompts, in order.

    `may_start`: it waits for nothing but pages; asked of those only that there are pages for. A
    started prompt is never preempted: its pages are reserved whole. A prompt that finds no pages is
    passed by smaller ones. But what decode has accepted and is owed has the first choice of
    pages, and if it finds none, nobody starts. (One that decode has not accepted must not stand
    before one that it has: decode may wait for the latter before it accepts the former.)
    """
    starts = _Starts(room, may_start)
    for prompt in _owed(queue, room.owed_at):
        starts.keep(prompt)
    chunks: list[Chunk] = []
    budget = _Budget(room)
    for prompt in queue:
        if budget.left <= 0 or len(chunks) == room.max_num_seqs:
            break
        size = budget.most(prompt)
        runs = prompt.phase is Phase.RUNNING
        if size and (runs or (prompt.phase is Phase.WAITING and starts.take(prompt))):
            chunks.append(Chunk(prompt, prompt.planned + size, not runs))
            budget.spend(prompt, size)
    return budget.used_up(chunks, queue)


def is_long(n_tokens: int, pass_tokens: int | None) -> bool:
    """It would not be finished by such a pass and a half."""
    return pass_tokens is not None and n_tokens > pass_tokens + pass_tokens // SMALL_REST


class _Budget:
    """Tokens of the pass that are left.

    Where somebody would wait for it, prompts that it cannot finish have half of it, however
    overdue, and of the other half what nobody else needs.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.left = self._of_long = room.budget_tokens
        if room.pass_tokens is not None:
            self.left = min(self.left, room.pass_tokens)
            half = room.pass_tokens // 2 // room.page_tokens * room.page_tokens
            self._of_long = max(half, room.page_tokens)

    def most(self, prompt: Prompt) -> int:
        """That a prompt may have."""
        size = min(prompt.remaining, self._room.chunk_tokens, self.left)
        return min(size, self._of_long) if self._is_long(prompt) else size

    def spend(self, prompt: Prompt, size: int) -> None:
        self.left -= size
        if self._is_long(prompt):
            self._of_long -= size

    def _is_long(self, prompt: Prompt) -> bool:
        return is_long(prompt.remaining, self._room.pass_tokens)

    def used_up(self, chunks: Sequence[Chunk], queue: Iterable[Prompt]) -> tuple[Chunk, ...]:
        """What is left goes to long prompts; one that is alone is not split for a small rest."""
        room = self._room
        alone = len(chunks) == 1 and sum(p.phase in TO_COMPUTE for p in queue) == 1
        made: list[Chunk] = []
        for chunk in chunks:
            rest, size = len(chunk.prompt.tokens) - chunk.end, chunk.end - chunk.prompt.planned
            more = 0
            if self._is_long(chunk.prompt):
                more = min(self.left, rest, room.chunk_tokens - size)
                self.left -= more
            elif alone and size + rest <= min(room.chunk_tokens, room.budget_tokens):
                more = rest
            made.append(replace(chunk, end=chunk.end + more))
        return tuple(made)


class _Starts:
    """Who may begin: first who is owed, then the others in order."""

    def __init__(self, room: Room, may_start: MayStart) -> None:
        self._room = room
        self._may_start = may_start
        self._pages = room.available_pages
        self._unaccepted = room.unaccepted_pages
        self._kept: set[TransferId] = set()
        self._closed = False

    def keep(self, owed: Prompt) -> None:
        """Pages for an owed prompt; if there are none, for nobody else either."""
        if self._closed or not self._may_start(owed):
            return
        need = _need(owed, self._room)
        if need > self._pages:
            self._closed = True
        else:
            self._pages -= need
            self._kept.add(owed.transfer)

    def take(self, prompt: Prompt) -> bool:
        if prompt.transfer in self._kept:
            return True
        need = _need(prompt, self._room)
        if self._closed or need > self._pages:
            return False
        if prompt.accept is None and not self._may_start_unaccepted(need):
            return False
        if not self._may_start(prompt):
            return False
        self._pages -= need
        self._unaccepted += need if prompt.accept is None else 0
        return True

    def _may_start_unaccepted(self, need: int) -> bool:
        """One alone always may, however long it is."""
        share = self._room.n_pages // UNACCEPTED_SHARE
        return self._unaccepted == 0 or self._unaccepted + need <= share


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a prompt is not queued; when to come again (None: it will never fit)."""

    text: str
    retry_after_s: float | None
    predicted_ttft_s: float | None = None  # given: it is later than is owed, hence the refusal


def refusal(
    n_tokens: int, waiting: Sequence[int], limits: Limits, tokens_per_s: float
) -> Refusal | None:
    """Whether a prompt must be refused before any work is done for it.

    `waiting`: tokens still to compute of each queued prompt. `tokens_per_s`: 0 if not known.
    """
    if n_tokens + 1 > limits.max_model_len:
        return Refusal(
            f"{n_tokens} tokens of {limits.max_model_len - 1} that fit the context", None
        )
    if pages_for(n_tokens, limits.page_tokens) > limits.n_pages:
        room = limits.n_pages * limits.page_tokens
        return Refusal(f"{n_tokens} tokens of {room} that fit the KV cache", None)
    if len(waiting) >= limits.max_waiting:
        wait_s = sum(waiting) / tokens_per_s if tokens_per_s else 0.0
        return Refusal(
            f"{len(waiting)} prompts of {limits.max_waiting} wait", max(RETRY_MIN_S, wait_s)
        )
    return None


def tokens_ahead(
    prompts: Iterable[Prompt], due: float, n_tokens: int, pass_tokens: int | None
) -> int:
    """To compute before a prompt that is due then and has so many, or beside it.

    The running pass's part is not counted. `pass_tokens`: see `Room`.
    """
    ahead = [p.remaining for p in prompts if p.due <= due and p.phase in TO_COMPUTE]
    if is_long(n_tokens, pass_tokens):
        return sum(ahead)
    short = sum(n for n in ahead if not is_long(n, pass_tokens))
    return short + min(sum(ahead) - short, short + n_tokens)  # long ones have half of each pass


def too_late(
    n_tokens: int, ahead: int, deadline_s: float, tokens_per_s: float, rest_s: float
) -> Refusal | None:
    """Early rejection: a stated deadline cannot be met, so nothing is computed in vain.

    `n_tokens`: to compute of the prompt, behind `ahead` more and the `rest_s` of the running pass.
    `tokens_per_s`: the most that was measured; 0 if nothing was, and then nobody is refused.
    """
    if not tokens_per_s:
        return None
    ttft_s = rest_s + (ahead + n_tokens) / tokens_per_s
    if ttft_s <= deadline_s:
        return None
    text = f"first token in {ttft_s:.2f} s at the earliest, owed in {deadline_s:.2f} s"
    return Refusal(text, max(RETRY_MIN_S, ttft_s - deadline_s), ttft_s)
