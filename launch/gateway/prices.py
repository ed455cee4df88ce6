"""What a route is predicted to cost, in seconds. Pure: views in, numbers out.

The cost of a pair is the time to the second token: the prefill queue before the prompt, the tokens
that no cache holds, the pages to be moved, and the decode side's load. Prefix affinity needs no
rule of its own: a prefix that a worker holds is work that is not done there.

A decode worker that computes the prompt itself saves the handoff, and delays the sequences that
decode there: each loses what the prompt adds to its passes. What both sides lose is summed as
slowdowns, a delay over the time that the delayed takes undisturbed (the form in which Splitwise,
Patel et al., ISCA 2024, states its SLOs; the stretch metric of Bender, Chakrabarti and
Muthukrishnan, SODA 1998). In the prompt's own seconds: a second that a running sequence stands
still counts for as many as decode steps fit into the computing of the prompt, and for one at
least. So a few tokens are taken in beside running sequences where that saves more than it takes
from them, and a long prompt is not unless the prefill workers are minutes behind: its client waits
for a few times the prompt's own time, theirs would wait for a hundred times a step.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from statistics import median

from common.config import DEFAULTS
from common.engine.pace import SHARE
from common.ids import InstanceId, Role
from common.kv.layout import pages_for
from launch.gateway.views import Demand, WorkerView

DEFAULT_TOKENS_PER_S = 2000.0  # of prompts, until some worker has measured its own
DEFAULT_STEP_S = 0.02  # of decode, the same
MOVE_S_PER_PAGE = 50e-6  # a page of a small model through shared memory, measured: 17 us and up
HANDOFF_STEPS = 0.25  # that the second token comes later if the prompt was computed elsewhere
CHUNK_TOKENS = DEFAULTS[Role.DECODE].chunk_tokens  # of prompts beside sequences that decode
NEWCOMERS = 0.01  # sequences that are expected to come to decode while a prompt is computed there


@dataclass(frozen=True, slots=True)
class Price:
    """Of a route."""

    decode: WorkerView
    prefill: WorkerView | None  # None: `decode` computes the prompt
    seconds: float
    ttft_s: float
    late: bool
    missed: int  # SLOs: of the request, and what sequences that are disturbed are owed

    @property
    def rank(self) -> tuple[int, float, InstanceId, float, str]:
        """The least is the best; ties go by instances."""
        prefill = "" if self.prefill is None else self.prefill.instance
        return self.missed, self.seconds, self.decode.instance, self.ttft_s, prefill


class Prices:
    """Predictions for one demand."""

    def __init__(
        self,
        demand: Demand,
        prefills: Collection[WorkerView],
        decodes: Collection[WorkerView],
        refused: Collection[InstanceId] = (),
    ) -> None:
        """`refused`: who would not have it, and is not counted on to be in time."""
        self._demand = demand
        self._refused = refused
        self._cached = {v.instance: v.cached_pages(demand.hashes) for v in (*prefills, *decodes)}
        self._step_s = _typical(_measured_step_s(v) for v in decodes) or DEFAULT_STEP_S
        of_prefill = _typical(_measured_tokens_per_s(v) for v in prefills)
        of_decode = _typical(_measured_tokens_per_s(v) for v in decodes)
        self._decode_tokens_per_s = of_decode or of_prefill or DEFAULT_TOKENS_PER_S
        self._page_tokens = next((v.page_tokens for v in decodes), 1)  # all have the same
        typical = of_prefill or of_decode or DEFAULT_TOKENS_PER_S
        self._queues = {  # pages that it holds, tokens before the prompt, tokens a second
            v.instance: (
                self._cached[v.instance],
                v.queued_tokens,
                _measured_tokens_per_s(v) or typical,
            )
            for v in prefills
        }

    def cached_pages(self, view: WorkerView) -> int:
        """Leading pages of the demand that it holds."""
        return self._cached[view.instance]

    # --- a pair ------------------------------------------------------------------------------

    def remote(self, decode: WorkerView, prefill: WorkerView) -> Price:
        """`prefill` computes the prompt."""
        late, ttft_s, _ = self.computing(prefill, self.cached_pages(decode))
        # While the decode side computes prompts of others, its tokens come slowly.
        undisturbed_s = max(ttft_s, decode.queued_tokens / self._rate(decode))
        seconds = undisturbed_s + self._handoff_s(decode) + self._decode_s(decode)
        return Price(decode, prefill, seconds, ttft_s, late, late + self._is_slow(decode))

    def computing(self, prefill: WorkerView, n_cached: int) -> tuple[bool, float, InstanceId]:
        """(too late, TTFT, who) where the decode side holds so many pages.

        This is all that `remote` takes from the prefill side: of one decode worker's pairs, the one
        with the least of these is of the least price.
        """
        instance = prefill.instance
        own_cached, queued, rate = self._queues[instance]
        n_tokens = self._uncached(n_cached if n_cached > own_cached else own_cached)
        ttft_s = (queued + n_tokens) / rate
        if n_cached > own_cached:  # it fetches what the decode side has
            ttft_s += (n_cached - own_cached) * MOVE_S_PER_PAGE
        return self._is_late(instance, ttft_s), ttft_s, instance

    def _handoff_s(self, decode: WorkerView) -> float:
        """Until the decode side has the prompt's pages, and goes on."""
        n_pages = pages_for(self._demand.n_tokens, self._page_tokens)
        move_s = (n_pages - self.cached_pages(decode)) * MOVE_S_PER_PAGE
        return HANDOFF_STEPS * self._pass_s(decode) + move_s

    # --- a decode worker alone ---------------------------------------------------------------

    def local(self, decode: WorkerView, *, shield: bool) -> Price:
        """`decode` computes the prompt.

        `shield`: those that run there, since others could compute it. Where nobody else can, some
        are disturbed wherever it goes, and a second counts for a second.
        """
        rate = self._rate(decode)
        n_tokens = self._uncached(self.cached_pages(decode))
        all_tokens = decode.queued_tokens + n_tokens
        ttft_s = all_tokens / rate
        if decode.n_decoding:  # every pass is one of theirs, too
            ttft_s += -(-all_tokens // self._pass_tokens(decode, rate)) * self._pass_s(decode)
        own_s = n_tokens / rate  # by itself
        weight = max(1.0, own_s / self._pass_s(decode)) if shield else 1.0
        n_disturbed = self._disturbed(decode, ttft_s, ttft_s * n_tokens / all_tokens)
        lost_s = own_s * weight * (n_disturbed + NEWCOMERS)
        seconds = ttft_s + lost_s + self._decode_s(decode)
        late = self._is_late(decode.instance, ttft_s)
        missed = late + self._is_slow(decode) + self._breaks_promises(decode, rate)
        return Price(decode, None, seconds, ttft_s, late, missed)

    def _disturbed(self, decode: WorkerView, ttft_s: float, own_s: float) -> float:
        """Sequences that decode while the prompt is computed, in the last `own_s` of `ttft_s`: who
        comes meanwhile counts for the part that is left."""
        ends_at = self._demand.now + ttft_s
        coming = sum(
            min(1.0, (ends_at - handed_by) / own_s)
            for handed_by in decode.own_coming.values()
            if handed_by < ends_at
        )
        return decode.n_decoding + coming

    def _rate(self, decode: WorkerView) -> float:
        return _measured_tokens_per_s(decode) or self._decode_tokens_per_s

    def _pass_tokens(self, decode: WorkerView, rate: float) -> int:
        """Of prompts in a pass beside those that decode, who may have stated a TPOT."""
        tightest_s = decode.tightest_tpot_s
        if tightest_s is None:
            return CHUNK_TOKENS
        spare_s = SHARE * tightest_s - self._pass_s(decode)
        return max(self._page_tokens, min(CHUNK_TOKENS, int(spare_s * rate)))

    def _breaks_promises(self, decode: WorkerView, rate: float) -> bool:
        """Some sequence there would miss the TPOT that it states: a page is in every pass."""
        tightest_s = decode.tightest_tpot_s
        with_page_s = self._pass_s(decode) + self._page_tokens / rate
        return tightest_s is not None and with_page_s > tightest_s

    # --- parts of both -----------------------------------------------------------------------

    def _uncached(self, n_cached: int) -> int:
        """Tokens to compute; the last one always is."""
        n_tokens = self._demand.n_tokens - n_cached * self._page_tokens
        return n_tokens if n_tokens > 0 else 1

    def _is_late(self, computing: InstanceId, ttft_s: float) -> bool:
        owed_s = self._demand.ttft_s
        return owed_s is not None and (ttft_s > owed_s or computing in self._refused)

    def _is_slow(self, decode: WorkerView) -> bool:
        """A sequence has a token a pass, or every so many passes where not all fit in one."""
        owed_s, limits = self._demand.tpot_s, decode.hello.limits
        turns = 1.0 if limits is None else (decode.busy + 1) / limits.max_num_seqs
        return owed_s is not None and self._pass_s(decode) * max(1.0, turns) > owed_s

    def _decode_s(self, decode: WorkerView) -> float:
        """How much later, and how much slower, tokens come for what is there already."""
        demand, snapshot, limits = self._demand, decode.snapshot, decode.hello.limits
        if limits is None:
            return float("inf")
        pages = pages_for(demand.n_tokens + demand.max_tokens, limits.page_tokens)
        pages -= self.cached_pages(decode)
        free = snapshot.free_pages if snapshot is not None else limits.n_pages
        free = min(free, limits.n_pages - pages_for(decode.own_tokens, limits.page_tokens))
        short = max(0, pages - free) / limits.n_pages
        step_s, busy = self._pass_s(decode), decode.busy
        turns = busy / limits.max_num_seqs
        return step_s * (1 + busy) * (1 + turns) + short * step_s * demand.max_tokens

    def _pass_s(self, decode: WorkerView) -> float:
        return _measured_step_s(decode) or self._step_s


def _measured_step_s(view: WorkerView) -> float:
    return view.snapshot.step_s if view.snapshot is not None else 0.0


def _measured_tokens_per_s(view: WorkerView) -> float:
    return view.snapshot.tokens_per_s if view.snapshot is not None else 0.0


def _typical(measured: Iterable[float]) -> float:
    """What a worker that has not measured it is taken for; 0: none has."""
    known = [one for one in measured if one > 0]
    return median(known) if known else 0.0
