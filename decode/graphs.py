"""Decode passes on a device: asked for while the one before is computed, and read when they have
ended. Nothing in the loop waits for the device or takes memory from it.

What has one row a sequence is computed by captured graphs, one for each of some numbers of rows,
over buffers that stay where they are (`decode.step_inputs`); prompts are computed operation by
operation. Both leave logits where other graphs draw from them (`decode.draw_inputs`), and tokens
where the next pass finds them. The host waits for the pass before where what may be drawn is a
function of its tokens (grammars), while this one is computed. Must not decide what is computed.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from common.engine.device_thread import MOST_UNANSWERED, Waiting
from common.engine.plan import Draw, Drawn, PassPlan, PassResult, filled
from common.engine.runner import Runner, inputs_of
from common.engine.stream import Graph, Stream, device_fails_for_good, ends_before_it_fails
from common.kernels import ops
from common.kernels.triton.logprob_rows import MOST_TOP
from common.kernels.triton.rows import tensor_of
from common.kv.layout import pages_for
from common.model.inputs import PassInputs
from common.params import TokenLogprob
from common.sampling import score
from decode.draw_inputs import DrawInputs
from decode.drawn_rows import DrawnRows
from decode.step_inputs import StepInputs

FINE_BUCKETS, COARSE_BUCKET = (1, 2, 4), 8

# b rows of a graph  S rows at most  V vocabulary  D draws


def buckets(max_num_seqs: int) -> tuple[int, ...]:
    """Numbers of rows that graphs are captured for: a step takes the least that it fits."""
    coarse = range(COARSE_BUCKET, max_num_seqs, COARSE_BUCKET)
    return tuple(sorted({n for n in FINE_BUCKETS if n < max_num_seqs} | {*coarse, max_num_seqs}))


class Step:
    """A pass that was asked for. `result` from any thread, as often as wanted."""

    def __init__(self, wait: Callable[[], PassResult], *, on_device: bool) -> None:
        """`on_device`: what it draws is where the next pass finds it, in the draws' order."""
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
        self._runner, self._stream, self._n_vocab = runner, stream, n_vocab
        self._longest_keys = max_model_len
        cache = runner.cache
        table_pages = pages_for(max_model_len, cache.spec.page_tokens)
        with stream.work():
            self._inputs = StepInputs(max_num_seqs, table_pages, n_vocab, stream, cache.geometry)
            self._draws = DrawInputs(max_num_seqs, n_vocab, stream)
            self._drawn_S = torch.zeros(max_num_seqs, dtype=torch.int64, device=stream.device)
            self._logits_SV = torch.zeros((max_num_seqs, n_vocab), device=stream.device)
        self._incoming = [DrawnRows(max_num_seqs, n_vocab, stream) for _ in range(MOST_UNANSWERED)]
        self._turn = 0
        self._buckets = buckets(max_num_seqs)
        self._steps: dict[int, Graph] = {}
        self._draw: dict[int, Graph] = {}
        self._tell: dict[int, Graph] = {}
        self._before: Step | None = None  # None: it could not even be asked for
        self._free_at = 0.0  # when the device had done all that was waited for

    @torch.inference_mode()
    def capture(self, report: Callable[[int, int], None]) -> None:
        """All graphs, the largest first, so that the others find room in its memory. `report`: how
        many of how many are there. Overwrites no page."""
        kinds = (
            (self._steps, self._compute_step),
            (self._draw, self._draw_tokens),
            (self._tell, self._tell_logprobs),
        )
        wanted = [(*kind, rows) for rows in reversed(self._buckets) for kind in kinds]
        for n, (graphs, compute, rows) in enumerate(wanted, 1):
            work = partial(compute, rows)
            with self._stream.work():
                work()
            self._stream.mark().synchronize()
            graphs[rows] = self._stream.capture(work)
            report(n, len(wanted))

    @torch.inference_mode()
    def begin(self, plan: PassPlan) -> Waiting:
        """Ask for a pass; what waits for its end. Tokens that the plan does not know yet are those
        of the pass before; IndexError: that was not to be had."""
        before, self._before = self._before, None
        began = time.perf_counter()
        stream = self._stream
        with device_fails_for_good(), stream.work(), ends_before_it_fails(stream):
            if plan.scores or len(plan.draws) > self._draws.n_rows:
                step = self._computed(plan, before)
            else:
                step = self._asked_for(plan, before, began)
        self._before = step
        return step.result

    # --- ways to compute a pass ------------------------------------------------------------------

    def _computed(self, plan: PassPlan, before: Step | None) -> Step:
        """To its end, with draws by the host."""
        self._draws.forget(plan.draws)
        result = self._runner.run(_known(plan, before))
        self._stream.mark().synchronize()
        return Step(lambda: result, on_device=False)

    def _asked_for(self, plan: PassPlan, before: Step | None, began: float) -> Step:
        """Nobody waits for it here."""
        needed = before if len(plan.unread_rows_U) else None
        if len(plan.unread_rows_U) and (needed is None or not needed.on_device):
            plan, needed = _known(plan, before), None
        asked_at = 0.0
        if self._is_step(plan):
            self._inputs.tell(plan)
            self._steps[self._bucket(plan.n_rows)].replay()
            asked_at = time.perf_counter()
        else:
            self._compute(plan)
        drawn = self._ask_for_draws(plan, needed)
        mark = self._stream.mark()

        def wait() -> PassResult:
            mark.synchronize()
            if needed is not None:
                needed.result()
            return self._result(drawn(), began, asked_at)

        return Step(wait, on_device=True)

    def _is_step(self, plan: PassPlan) -> bool:
        """A row and a draw a sequence, in one order."""
        n = plan.n_rows
        return (
            n == len(plan.len_B) == len(plan.draws)
            and not plan.copies
            and all(draw.row == row for row, draw in enumerate(plan.draws))
        )

    def _compute(self, plan: PassPlan) -> None:
        """Operation by operation; leaves the logits of its draws."""
        device, runner = self._stream.device, self._runner
        for source, destination in plan.copies:
            runner.cache.copy_page(source, destination)
        inputs = inputs_of(plan, runner.cache.geometry, device)
        if len(plan.unread_rows_U):
            row_U = tensor_of(plan.unread_rows_U, device)
            token_U = self._drawn_S.index_select(0, tensor_of(plan.unread_draws_U, device))
            token_U.clamp_(0, self._n_vocab - 1)  # a draw that has failed
            inputs = replace(inputs, tokens_T=inputs.tokens_T.index_copy(0, row_U, token_U))
        hidden_TH = runner.model.forward(inputs, runner.cache)
        if plan.draws:
            logits_DV = runner.logits_of(hidden_TH, plan.draws)
            self._logits_SV[: len(plan.draws)].copy_(logits_DV)

    def _ask_for_draws(
        self, plan: PassPlan, needed: Step | None
    ) -> Callable[[], tuple[Drawn, ...]]:
        """From the logits that are there. Reads them, when the device has done all of it."""
        draws = plan.draws
        if not draws:
            return lambda: ()
        if any(self._draws.lacks_outputs(draw) for draw in draws):
            draws = _known(plan, needed).draws
        bucket = self._bucket(len(draws))
        self._draws.tell(draws, self._runner.allowed(draws))
        self._draw[bucket].replay()
        self._draws.drawn(draws)
        self._turn = (self._turn + 1) % MOST_UNANSWERED
        incoming = self._incoming[self._turn]
        incoming.ask_for_tokens(self._drawn_S)
        scores: dict[int, TokenLogprob] = {}
        if any(draw.params.logprobs is not None for draw in draws):
            self._tell[bucket].replay()
            incoming.ask_for_logprobs(self._draws.logprobs(bucket))
            scores = self._scored(draws, incoming)
        return partial(incoming.read, draws, scores)

    def _scored(self, draws: Sequence[Draw], incoming: DrawnRows) -> dict[int, TokenLogprob]:
        """Of rows that want more than graphs find: for these it waits."""
        rows = [r for r, draw in enumerate(draws) if (draw.params.logprobs or 0) > MOST_TOP]
        if rows:
            self._stream.mark().synchronize()
        scores: dict[int, TokenLogprob] = {}
        for row in rows:
            token, n_top = incoming.token(row), draws[row].params.logprobs
            if token >= 0 and n_top is not None:
                (scores[row],) = score(self._logits_SV[row : row + 1], [token], n_top)
        return scores

    def replay(self, n_rows: int) -> None:
        """Ask for a step of what the device was told last, in the stream's `work`."""
        self._steps[self._bucket(n_rows)].replay()
        self._draw[self._bucket(n_rows)].replay()

    def _bucket(self, n_rows: int) -> int:
        return next(rows for rows in self._buckets if n_rows <= rows)

    def _result(self, drawn: tuple[Drawn, ...], began: float, asked_at: float) -> PassResult:
        now = time.perf_counter()
        seconds, self._free_at = now - max(began, self._free_at), now
        return PassResult(drawn=drawn, seconds=seconds, asked_at=asked_at)

    # --- what is captured ------------------------------------------------------------------------

    def _compute_step(self, n_rows: int) -> None:
        inputs = self._inputs
        inputs.take_over(n_rows)
        rows = inputs.attention_rows(n_rows, self._longest_keys)
        tokens_T = inputs.tokens(n_rows, self._drawn_S)
        hidden_TH = self._runner.model.forward(
            PassInputs(tokens_T=tokens_T, rows=rows), self._runner.cache
        )
        self._logits_SV[:n_rows].copy_(self._runner.model.logits(hidden_TH))

    def _draw_tokens(self, n_rows: int) -> None:
        token_R = ops.sample(self._logits_SV[:n_rows], self._draws.drawing(n_rows))
        self._drawn_S[:n_rows].copy_(token_R)

    def _tell_logprobs(self, n_rows: int) -> None:
        ops.logprobs(self._logits_SV[:n_rows], self._drawn_S[:n_rows], self._draws.logprobs(n_rows))


def _known(plan: PassPlan, before: Step | None) -> PassPlan:
    """With every token in its place, which may take waiting for the step before."""
    if not len(plan.unread_rows_U):
        return plan
    drawn: Sequence[Drawn] = () if before is None else before.result().drawn
    return filled(plan, drawn)
