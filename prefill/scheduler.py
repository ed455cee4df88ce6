"""Which chunks of which prompts make the next pass. Pure policy: state in, chunks out.

Continuous batching of variable-length chunks under a token budget (Orca's iteration-level
scheduling applied to prompts; chunks as in Sarathi-Serve). Order is earliest due first. A prompt
that states no deadline is due in proportion to its length, fixed when it arrives: a short question
passes a long document, and the document, growing overdue, cannot be passed for ever. A priority is
a head start, or the opposite. How much of the document a pass computes while questions with a
stated TTFT come is `prefill.pace`'s to say.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf

from common.engine.priority import levels
from common.ids import TransferId
from common.kv.layout import pages_for
from prefill.pace import Limit
from prefill.state import Phase, Prompt

DUE_BASE_S = 0.5
DUE_PER_TOKEN_S = 0.002
PRIORITY_S = 30.0  # of waiting that a level of priority is worth
TO_COMPUTE = (Phase.WAITING, Phase.FETCHING, Phase.RUNNING)
MayStart = Callable[[Prompt], bool]
SMALL_REST = 2  # a rest of 1/2 of what a pass computes is not worth another one
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
    limit: Limit | None  # where somebody may have to wait for the pass
    max_num_seqs: int  # prompts in the pass
    page_tokens: int
    available_pages: int  # free, or cached and evictable
    unaccepted_pages: int  # held by prompts that decode has not accepted
    n_pages: int  # of the pool
    owed_at: float  # whoever decode waits for, and is due by then, is owed pages


def due_at(arrived: float, n_tokens: int, deadline_s: float | None, priority: int = 0) -> float:
    """When the first token is owed; of a priority, as if so much more or less had been waited."""
    since = arrived + PRIORITY_S * levels(priority)
    if deadline_s is not None:
        return since + deadline_s
    return since + DUE_BASE_S + DUE_PER_TOKEN_S * n_tokens


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
    for sharing in _sharing(queue):
        chunks = _plan(queue, sharing, room, may_start)
        if chunks:
            return chunks
    return ()


def _sharing(queue: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    """Those that may be in one pass, in the order in which to try: a prompt that is to be alone has
    a pass of its own when it is its turn, or when the others cannot run."""
    alone = [p for p in queue if p.request.alone and p.phase in TO_COMPUTE]
    if alone and next(p for p in queue if p.phase in TO_COMPUTE) is alone[0]:
        yield alone[:1]
    yield [p for p in queue if not p.request.alone] if alone else queue
    yield from ([prompt] for prompt in alone)


def _plan(
    queue: Sequence[Prompt], sharing: Sequence[Prompt], room: Room, may_start: MayStart
) -> tuple[Chunk, ...]:
    starts = _Starts(room, may_start)
    for prompt in _owed(queue, room.owed_at):
        starts.keep(prompt)
    chunks: list[Chunk] = []
    budget = _Budget(room)
    for prompt in sharing:
        if budget.left <= 0 or len(chunks) == room.max_num_seqs:
            break
        size = budget.most(prompt)
        runs = prompt.phase is Phase.RUNNING
        if size and (runs or (prompt.phase is Phase.WAITING and starts.take(prompt))):
            chunks.append(Chunk(prompt, prompt.planned + size, not runs))
            budget.spend(prompt, size)
    return budget.used_up(chunks, queue)


def states(prompt: Prompt) -> bool:
    """It says by when its first token is owed."""
    return prompt.request.deadline_s is not None


class _Budget:
    """What is left of the pass.

    Where somebody may have to wait for it, half of it is for prompts that state a deadline, however
    overdue others are; and what those do not need is for others, too.
    """

    def __init__(self, room: Room) -> None:
        self._room = room
        self.left = self._others = room.budget_tokens
        self._left_s = self._others_s = inf
        if room.limit is not None:
            self._others = (room.budget_tokens + 1) // 2
            self._left_s, self._others_s = room.limit.pass_s, room.limit.pass_s / 2
        self._had: set[bool] = set()  # of those that state a deadline, and of others: some had some

    def most(self, prompt: Prompt) -> int:
        """Tokens that a prompt may have: all, or whole pages. The first of its kind has one."""
        room = self._room
        left = self.left if states(prompt) else min(self.left, self._others)
        size = min(prompt.remaining, room.chunk_tokens, left)
        if room.limit is None:
            return size
        seconds = self._left_s if states(prompt) else min(self._left_s, self._others_s)
        most = room.limit.cost.tokens(prompt.planned, seconds)
        if most >= size:
            return size
        least = room.page_tokens if seconds > 0 and states(prompt) not in self._had else 0
        return min(size, max(least, self._pages(most)))

    def _pages(self, n_tokens: int) -> int:
        return n_tokens // self._room.page_tokens * self._room.page_tokens

    def spend(self, prompt: Prompt, size: int) -> None:
        self.left -= size
        self._had.add(states(prompt))
        if self._room.limit is None:
            return
        seconds = self._room.limit.cost.seconds(prompt.planned, size)
        if states(prompt):
            self._left_s -= seconds
        else:
            self._left_s -= min(seconds, self._others_s)
            self._others_s -= seconds
            self._others -= size

    def used_up(self, chunks: Sequence[Chunk], queue: Iterable[Prompt]) -> tuple[Chunk, ...]:
        """With what is left; and a prompt that is alone is not split for a small rest."""
        if self._room.limit is None:
            return tuple(chunks)
        made = [self._longer(chunk, self._room.limit) for chunk in chunks]
        if len(made) == 1 and sum(p.phase in TO_COMPUTE and p.remaining > 0 for p in queue) == 1:
            made = [self._whole(made[0])]
        return tuple(made)

    def _longer(self, chunk: Chunk, limit: Limit) -> Chunk:
        size, rest = chunk.end - chunk.prompt.planned, len(chunk.prompt.tokens) - chunk.end
        most = self._pages(limit.cost.tokens(chunk.end, self._left_s))
        more = min(most, rest, self._room.chunk_tokens - size, self.left)
        self.left -= more
        self._left_s -= limit.cost.seconds(chunk.end, more)
        return replace(chunk, end=chunk.end + more)

    def _whole(self, chunk: Chunk) -> Chunk:
        size, rest = chunk.end - chunk.prompt.planned, len(chunk.prompt.tokens) - chunk.end
        fits = size + rest <= min(self._room.chunk_tokens, self._room.budget_tokens)
        return replace(chunk, end=chunk.end + rest) if fits and rest * SMALL_REST <= size else chunk


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
