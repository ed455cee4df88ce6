"""Who is let in, what the next pass computes, who must give way. Pure policy: records are read,
answers returned, nothing changed.

Decode never waits for prefill, and pools cannot deadlock, by one rule: room is let out only while
the admitted sequence that still needs most could be finished beside all room that is promised.
What running sequences take beyond that, the older can take back from the younger. The forecast
(`decode.forecast`) makes that rare: nobody is let in beside others unless all are expected to fit
until they have ended.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.engine.priority import is_full, levels
from common.engine.refusal import RETRY_MIN_S, Refusal
from common.ids import InstanceId
from common.kv.layout import pages_for
from common.messages import Expect, Limits
from decode.forecast import Foresight, Future, rank
from decode.state import Sample, Transfer

MAX_PASSED = 8  # times its own memory x time may pass by whoever waits for room
PRIORITY_PASSES = 1024  # of waiting that a level of priority is worth
LOOKAHEAD = 4  # handoffs may be in flight for 1/4 more sequences than a pass takes
RETRY_MAX_S = 60.0


def whole_tokens(request: Expect) -> int:
    """Of the longest sample that says all it may. `max_tokens` counts the outputs of earlier
    attempts, as the sampling parameters do everywhere."""
    n_outputs = max(len(sample.outputs) for sample in request.samples)
    return len(request.prompt) + max(request.params.max_tokens, n_outputs + 1)


def whole_pages(request: Expect, page_tokens: int) -> int:
    """The same in pages: the KV of the last token is never written."""
    return pages_for(whole_tokens(request) - 1, page_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a request asks of the pool."""

    claim_pages: int  # to be set aside now, beside what it shares
    rest_pages: int  # more that one of its samples takes until it has said all it may
    n_seqs: int


def need(transfer: Transfer, n_tokens: int, n_samples: int, *, shared: int, limits: Limits) -> Need:
    """Room for `n_tokens` tokens, of which `shared` leading pages are here, and the next one.

    The samples share all full pages; each but the first needs a page for what it says next. A
    pool too small for them all is asked for less: then samples are preempted, and come back.
    """
    page_tokens = limits.page_tokens
    whole = transfer.whole_pages
    first = min(pages_for(n_tokens + 1, page_tokens), whole)
    others = n_samples - 1 if transfer.request.params.max_tokens > 1 else 0
    claim = min(first + others, limits.n_pages - (whole - first))
    return Need(claim_pages=claim - shared, rest_pages=whole - first, n_seqs=n_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the pool has, and what it owes to those it has let in."""

    available_pages: int  # free, or cached and evictable
    claimed_pages: int  # of these, promised and not taken yet
    rest_pages: int  # the most that one of those let in still needs beyond its claim
    n_seqs: int  # let in
    max_num_seqs: int  # of a pass


def fits(need: Need, room: Room) -> bool:
    """Whether there is room now. One request alone is let in however many samples it has."""
    max_seqs = room.max_num_seqs + -(-room.max_num_seqs // LOOKAHEAD)
    if room.n_seqs and room.n_seqs + need.n_seqs > max_seqs:
        return False
    kept = max(room.rest_pages, need.rest_pages)
    return need.claim_pages + kept <= room.available_pages - room.claimed_pages


def futures(
    samples: Sequence[Sample],
    n_tokens: int,
    n_shared: int,
    foresight: Foresight,
    page_tokens: int,
) -> list[Future]:
    """What samples that share `n_tokens` tokens will take; the first stands for all they share.

    `n_shared`: leading pages that others hold too.
    """
    n_full = (n_tokens - 1) // page_tokens
    made: list[Future] = []
    for sample in samples:
        n_said = len(sample.outputs)
        place = rank(sample.transfer.arrival + sample.number)
        n_left = foresight.predict(n_said, most_outputs(sample), place) - n_said
        made.append(Future(n_tokens, n_left, n_full if made else min(n_shared, n_full)))
    return made


def most_outputs(sample: Sample) -> int:
    """What it may say at most, and has not said yet."""
    return max(sample.params.max_tokens, len(sample.outputs) + 1)


def turn(n_passes: int, volume: int, n_pages: int, priority: int = 0) -> float:
    """When it is the turn of a request that asks after `n_passes` passes.

    Smallest volume of memory first (pages x passes: SVF, arXiv 2606.22327), with ageing: it is
    passed by smaller ones only that come before its turn, and by then no more than `MAX_PASSED`
    times its own volume can have gone through the pool. A priority is a head start, or the
    opposite, of so many passes.
    """
    return n_passes + PRIORITY_PASSES * levels(priority) + MAX_PASSED * volume / n_pages


def in_order(transfers: Sequence[Transfer]) -> list[Transfer]:
    """Of queued ones: recovering before new, then by turn. It matters when pages are scarce."""
    return sorted(transfers, key=lambda t: (t.request.attempt == 1, t.turn, t.arrival))


@dataclass(frozen=True, slots=True)
class Turns:
    """What the next pass would compute if pages were no matter."""

    rows: tuple[tuple[Sample, int], ...]  # (sample, tokens), oldest first
    parked: tuple[Sample, ...]  # their gateway has given no credit for another token


Ready = tuple[Sample, int]
"""Who can go on, and its gap (see `Sample.gap`)."""


def apart(ready: Sequence[Ready], *, others_next: bool) -> Iterator[Sequence[Ready]]:
    """Those that may share a pass, in the order in which to try.

    A transfer that is to be alone takes turns with all the others; of several, the one that has
    said least.
    """
    alone = [(sample, gap) for sample, gap in ready if sample.transfer.request.alone]
    if not alone:
        yield ready
        return
    others = [(sample, gap) for sample, gap in ready if not sample.transfer.request.alone]
    if others and others_next:
        yield others
    alone.sort(key=lambda each: len(each[0].outputs) - each[0].first_index)  # stable: oldest first
    for transfer in dict.fromkeys(sample.transfer for sample, _ in alone):
        yield [(sample, gap) for sample, gap in ready if sample.transfer is transfer]
    if others and not others_next:
        yield others


def turns(ready: Sequence[Ready], credit: Mapping[InstanceId, int], room: "Budget") -> Turns:
    """Every sequence advances by a token, the oldest first; prompts share what is left over.

    Beside sequences that decode all prompts together get one chunk, so that no prompt stalls an
    answer for longer (stall-free batching: Sarathi-Serve, section 4); else the oldest have all.

    `ready` is oldest first. `credit`: tokens that may still be sent to each gateway; a request's
    samples draw together, so that the last one let in may pass it by their number.
    """
    left = dict(credit)
    chosen: list[Ready] = []
    parked: list[Sample] = []
    most = min(room.max_num_seqs, room.budget_tokens)
    some_decode = any(gap == 1 for _, gap in ready)
    chunk_tokens = room.chunk_tokens if some_decode else room.budget_tokens
    for sample, gap in ready:
        if len(chosen) == most:
            break
        gateway = sample.transfer.gateway
        if gap <= chunk_tokens:  # it may draw
            if left[gateway] <= 0:
                parked.append(sample)
                continue
            left[gateway] -= 1 + len(sample.followers)
        chosen.append((sample, gap))
    spare = min(room.budget_tokens - len(chosen), chunk_tokens)
    if room.prompt_tokens is not None:
        spare = min(spare, room.prompt_tokens)
    rows: list[tuple[Sample, int]] = []
    for sample, gap in chosen:
        if gap == 1:
            rows.append((sample, 1))
            continue
        more = min(spare, chunk_tokens - 1, gap - 1)
        spare -= more
        rows.append((sample, 1 + more))
    return Turns(tuple(rows), tuple(parked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of one pass."""

    budget_tokens: int
    chunk_tokens: int  # of prompts, where others decode
    max_num_seqs: int
    prompt_tokens: int | None = None  # beside a token of every sequence; None: as many as there is


def tightest_s(ready: Sequence[Ready]) -> float | None:
    """The shortest time between two tokens that one of those who decode has asked for.

    None: nobody has, or there is no prompt to be computed that could delay them.
    """
    if all(gap == 1 for _, gap in ready):
        return None
    stated = [sample.transfer.request.tpot_s for sample, gap in ready if gap == 1]
    return min((tpot_s for tpot_s in stated if tpot_s is not None), default=None)


@dataclass(frozen=True, slots=True)
class Loss:
    """What it takes to preempt a sequence, and what that gives."""

    sample: Sample
    recompute_tokens: int  # if nobody else keeps its pages
    cost_s: float  # of computing them again, or of copying its pages to the host and back
    free_pages: int  # that come back, its claim included
    n_left: int  # passes until it is expected to give them back by itself

    @property
    def priority(self) -> int:
        return self.sample.transfer.request.priority

    @property
    def price_s(self) -> float:
        """Of a page and pass."""
        gain = self.free_pages * self.n_left
        return self.cost_s / gain if gain else math.inf


def victim(younger: Sequence[Loss], parked: Sequence[Loss]) -> Loss | None:
    """Who gives way: a parked one, the youngest; else the cheapest of the younger, given oldest
    first. In either case the least urgent of them, by the priority that its client gave.

    None: whoever asks must wait, for older ones to finish or for pages on their way out. So the
    oldest that can run is never held up by another sequence.
    """
    if parked:
        return max(reversed(parked), key=lambda loss: loss.priority)
    return min(
        reversed(younger),
        key=lambda loss: (math.isinf(loss.price_s), -loss.priority, loss.price_s),
        default=None,
    )


def pages_ahead(sample: Sample, n_passes: int, page_tokens: int) -> int:
    """Pages beyond its claim that a sequence takes within so many passes, if it goes on."""
    n_left = min(n_passes, most_outputs(sample) - len(sample.outputs))
    table = sample.table
    n_pages = pages_for(sample.n_tokens + table.n_unread - 1 + n_left, page_tokens)
    return max(0, n_pages - len(table.pages) - table.claim)


def first_short(needs: Sequence[tuple[Sample, int]], spare: int) -> Sample | None:
    """Of (sequence, pages that it will take), oldest first: the first for which there are too
    few. None: there are enough for all."""
    for sample, n_pages in needs:
        spare -= n_pages
        if n_pages and spare < 0:
            return sample
    return None


def refusal(
    request: Expect, waiting: Sequence[Transfer], limits: Limits, step_s: float
) -> Refusal | None:
    """Whether a request must be refused before any work is done for it."""
    if not request.prompt or not request.samples:
        return Refusal("nothing to compute", None)
    many = len(request.samples) > 1
    if many and request.prefill is not None and any(s.outputs for s in request.samples):
        return Refusal("prefill computes the outputs of a single sample only", None)
    whole = whole_tokens(request)
    if whole > limits.max_model_len:
        return Refusal(f"{whole} tokens of {limits.max_model_len} that fit the context", None)
    pages = whole_pages(request, limits.page_tokens)
    if pages > limits.n_pages:
        return Refusal(f"{pages} pages of {limits.n_pages} that the KV cache has", None)
    priorities = [transfer.request.priority for transfer in waiting]
    recovering = request.recovering
    if is_full(request.priority, priorities, limits.max_waiting, recovering=recovering):
        text = f"{len(waiting)} requests of {limits.max_waiting} wait"
        return Refusal(text, retry_after_s(waiting, limits, step_s))
    return None


def retry_after_s(waiting: Sequence[Transfer], limits: Limits, step_s: float) -> float:
    """When the queue should be through, if each says all it may; `step_s` 0: not known."""
    tokens = sum(t.request.params.max_tokens * len(t.samples) for t in waiting)
    return min(max(RETRY_MIN_S, tokens / limits.max_num_seqs * step_s), RETRY_MAX_S)
