"""Which chunks of which prompts make the next pass. Pure policy: state in, chunks out.

Continuous batching of variable-length chunks under a token budget (Orca's iteration-level
scheduling applied to prompts; chunks as in Sarathi-Serve). Order is earliest due first. A prompt
that states no deadline is due in proportion to its length, fixed when it arrives: a short question
passes a long document, and the document, growing overdue, cannot be passed for ever.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from common.kv.layout import pages_for
from common.messages import Limits
from prefill.state import Phase, Prompt

DUE_BASE_S = 0.5
DUE_PER_TOKEN_S = 0.002
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
    max_num_seqs: int  # prompts in the pass
    page_tokens: int
    available_pages: int  # free, or cached and evictable
    unaccepted_pages: int  # held by prompts that decode has not accepted
    n_pages: int  # of the pool
    now: float


def due_at(arrived: float, n_tokens: int, deadline_s: float | None) -> float:
    """When the first token is owed."""
    if deadline_s is not None:
        return arrived + deadline_s
    return arrived + DUE_BASE_S + DUE_PER_TOKEN_S * n_tokens


def in_order(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Earliest due first; ties by arrival, then by id, so that the order is total."""
    return sorted(prompts, key=lambda p: (p.due, p.arrived, p.transfer))


def is_owed(prompt: Prompt, now: float) -> bool:
    """Decode waits for it, and it is overdue: pages must be found for it."""
    return prompt.phase is Phase.WAITING and prompt.accept is not None and prompt.due <= now


def to_set_back(prompts: Sequence[Prompt], room: Room) -> list[Prompt]:
    """Computed prompts whose pages an owed one must have, the latest due first.

    They are those that decode has not accepted: every other hold on a page ends by itself. They
    are computed again later (or found in the cache), and draw the same tokens.
    """
    owed = next((p for p in prompts if is_owed(p, room.now)), None)
    if owed is None:
        return []
    short = pages_for(len(owed.tokens), room.page_tokens) - room.available_pages
    victims: list[Prompt] = []
    for prompt in reversed(prompts):
        if short > 0 and prompt.phase is Phase.COMPUTED and prompt.accept is None:
            victims.append(prompt)
            short -= len(prompt.pages)
    return victims


def plan(queue: Sequence[Prompt], room: Room) -> tuple[Chunk, ...]:
    """Chunks of the next pass, most urgent first. `queue` is in order, startable or running.

    A started prompt is never preempted: its pages are reserved whole. A prompt that finds no
    pages is passed by smaller ones, unless decode has accepted it and it is overdue: then nobody
    starts before it. (One that decode has not accepted must not stand before one that it has:
    decode may wait for the latter before it accepts the former.)
    """
    chunks: list[Chunk] = []
    budget = room.budget_tokens
    pages = room.available_pages
    unaccepted = room.unaccepted_pages
    may_start = True
    for prompt in queue:
        if budget <= 0 or len(chunks) == room.max_num_seqs:
            break
        starts = prompt.phase is Phase.WAITING
        if starts:
            need = pages_for(len(prompt.tokens), room.page_tokens)
            fits = need <= pages and (
                prompt.accept is not None
                or unaccepted + need <= room.n_pages // UNACCEPTED_SHARE
                or unaccepted == 0  # one alone may always start
            )
            if not (may_start and fits):
                may_start = may_start and not is_owed(prompt, room.now)
                continue
            pages -= need
            unaccepted += need if prompt.accept is None else 0
        size = min(prompt.remaining, room.chunk_tokens, budget)
        if size > 0:
            chunks.append(Chunk(prompt, prompt.planned + size, starts))
            budget -= size
    return tuple(chunks)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a prompt is not queued; when to come again (None: it will never fit)."""

    text: str
    retry_after_s: float | None


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
        return Refusal(f"{len(waiting)} prompts of {limits.max_waiting} wait", max(1.0, wait_s))
    return None
