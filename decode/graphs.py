"""Decode steps on a device as captured graphs, one for each of some numbers of rows, replayed over
buffers that stay where they are (`decode.step_inputs`).

A step is asked for while the one before it is computed: what that one draws goes on to it on the
device, and is read when it has ended. Nothing in the loop waits for the device or takes memory from
it. Other passes (prompts, several samples of one) are computed operation by operation, and so are
draws with rules that need all outputs. Must not decide what is computed.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from common.engine.device_thread import MOST_UNANSWERED, Waiting
from common.engine.plan import Draw, Drawn, PassPlan, PassResult, filled
from common.engine.runner import Runner
from common.engine.stream import Graph, Stream, device_fails_for_good
from common.kernels import ops
from common.kv.layout import pages_for
from common.model.inputs import PassInputs
from common.sampling import all_drawn
from decode.step_inputs import StepInputs

FINE_BUCKETS, COARSE_BUCKET = (1, 2, 4), 8

# b rows of a graph  S rows at most  V vocabulary


def buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Numbers of rows that graphs are captured for: a step takes the least that it fits."""
    coarse = range(COARSE_BUCKET, max_num_seqs, COARSE_BUCKET)
    return tuple(sorted({n for n in FINE_BUCKETS if n < max_num_seqs} | {*coarse, max_num_seqs}))


class Step:
    """A pass that was asked for. `result` from any thread, as often as wanted."""

    def __init__(self, wait: Callable[[], PassResult], *, on_device: bool) -> None:
        """`on_device`: what it draws is where the next step finds it, in the rows' order."""
        self.on_device = on_device
        self._wait = wait
        self._lock = threading.Lock()
        self._ended: PassResult | Exception | None = None

    def result(self) -> PassResult:
        """Waits for its end. Raises what computing it did."""
        with self._lock:
            if self._ended is None:
                try:
                    self._ended = self._wait()
                except Exception as error:  # noqa: BLE001 - raised to each who asks
                    self._ended = error
                del self._wait  # and the step before, which it may have waited for
            if isinstance(self._ended, Exception):
                raise self._ended
            return self._ended


class GraphRunner:
    """Implements what `common.engine.device_thread.AsyncDeviceThread` begins passes by."""

    def __init__(
        self, runner: Runner, stream: Stream, *, max_num_seqs: int, max_model_len: int, n_vocab: int
    ) -> None:
        self._runner, self._stream = runner, stream
        self._longest_keys = max_model_len
        cache = runner.cache
        table_pages = pages_for(max_model_len, cache.spec.page_tokens)
        with stream.work():
            self._inputs = StepInputs(max_num_seqs, table_pages, n_vocab, stream, cache.geometry)
            self._drawn_S = torch.zeros(max_num_seqs, dtype=torch.int64, device=stream.device)
            self._logits_SV = torch.zeros((max_num_seqs, n_vocab), device=stream.device)
        self._incoming = [stream.pinned(max_num_seqs, torch.int64) for _ in range(MOST_UNANSWERED)]
        self._turn = 0
        self._buckets = buckets(max_num_seqs)
        self._graphs: dict[int, Graph] = {}
        self._before: Step | None = None  # None: it could not even be asked for
        self._free_at = 0.0  # when the device had done all that was waited for

    @torch.inference_mode()
    def capture(self, report: Callable[[int, int], None]) -> None:
        """All graphs, the largest first, so that the others find room in its memory. `report`: how
        many of how many are there. Overwrites no page."""
        for n, rows in enumerate(reversed(self._buckets), 1):
            work = partial(self._step, rows)
            with self._stream.work():
                work()
            self._stream.mark().synchronize()
            self._graphs[rows] = self._stream.capture(work)
            report(n, len(self._buckets))

    @torch.inference_mode()
    def begin(self, plan: PassPlan) -> Waiting:
        """Ask for a pass; what waits for its end. Tokens that the plan does not know yet are those
        of the pass before; IndexError: that was not to be had."""
        before, self._before = self._before, None
        began = time.perf_counter()
        with device_fails_for_good(), self._stream.work():
            if not self._is_step(plan):
                step = self._computed(plan, before)
            elif all(_is_drawn_by_graphs(draw) for draw in plan.draws):
                step = self._replayed(plan, before, began)
            else:
                step = self._drawn_apart(plan, before, began)
        self._before = step
        return step.result

    # --- ways to compute a pass ------------------------------------------------------------------

    def _is_step(self, plan: PassPlan) -> bool:
        """A row and a draw a sequence, in one order."""
        n = plan.n_rows
        return (
            n == len(plan.len_B) == len(plan.draws)
            and n <= self._inputs.n_rows
            and not plan.scores
            and not plan.copies
            and all(draw.row == row for row, draw in enumerate(plan.draws))
        )

    def _computed(self, plan: PassPlan, before: Step | None) -> Step:
        """Operation by operation, to its end."""
        result = self._runner.run(_known(plan, before))
        self._stream.mark().synchronize()
        return Step(lambda: result, on_device=False)

    def _replayed(self, plan: PassPlan, before: Step | None, began: float) -> Step:
        """By a graph; nobody waits for it here."""
        needed = before if len(plan.unread_rows_U) else None
        if len(plan.unread_rows_U) and (needed is None or not needed.on_device):
            plan, needed = _known(plan, before), None
        n_rows = self._replay(plan)
        self._turn = (self._turn + 1) % MOST_UNANSWERED
        incoming = self._incoming[self._turn]
        incoming.copy_(self._drawn_S, non_blocking=True)
        mark = self._stream.mark()

        def wait() -> PassResult:
            mark.synchronize()
            if needed is not None:
                needed.result()
            tokens = all_drawn(incoming[:n_rows].tolist())
            return self._result(tuple(Drawn(token=token) for token in tokens), began)

        return Step(wait, on_device=True)

    def _drawn_apart(self, plan: PassPlan, before: Step | None, began: float) -> Step:
        """By a graph, but for the draws, which need more than it keeps."""
        plan = _known(plan, before)
        n_rows = self._replay(plan)
        drawn = self._runner.drawn_from(self._logits_SV[:n_rows], plan.draws)
        self._stream.mark().synchronize()
        result = self._result(drawn, began)
        return Step(lambda: result, on_device=False)

    def _replay(self, plan: PassPlan) -> int:
        """How many rows of it count."""
        self._inputs.tell(plan)
        self.replay(plan.n_rows)
        return plan.n_rows

    def replay(self, n_rows: int) -> None:
        """Ask for a step of what the device was told last, in the stream's `work`."""
        self._graphs[next(rows for rows in self._buckets if n_rows <= rows)].replay()

    def _result(self, drawn: tuple[Drawn, ...], began: float) -> PassResult:
        now = time.perf_counter()
        seconds, self._free_at = now - max(began, self._free_at), now
        return PassResult(drawn=drawn, seconds=seconds)

    # --- what is captured ------------------------------------------------------------------------

    def _step(self, n_rows: int) -> None:
        inputs = self._inputs
        inputs.take_over(n_rows)
        rows = inputs.attention_rows(n_rows, self._longest_keys)
        tokens_T = inputs.tokens(n_rows, self._drawn_S)
        hidden_TH = self._runner.model.forward(
            PassInputs(tokens_T=tokens_T, rows=rows), self._runner.cache
        )
        logits_bV: Tensor = self._runner.model.logits(hidden_TH)
        self._logits_SV[:n_rows].copy_(logits_bV)
        self._drawn_S[:n_rows].copy_(ops.sample(logits_bV, inputs.drawing(n_rows)))


def _is_drawn_by_graphs(draw: Draw) -> bool:
    """By temperature, top_k, top_p and min_p alone, and no more is asked for than the token."""
    params = draw.params
    return (
        draw.index >= params.min_tokens
        and params.logprobs is None
        and not params.logit_bias
        and not params.grammar
        and params.repetition_penalty == 1
        and params.frequency_penalty == 0
        and params.presence_penalty == 0
    )


def _known(plan: PassPlan, before: Step | None) -> PassPlan:
    """With every token in its place, which may take waiting for the step before."""
    if not len(plan.unread_rows_U):
        return plan
    drawn: Sequence[Drawn] = () if before is None else before.result().drawn
    return filled(plan, drawn)
