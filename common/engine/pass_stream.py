"""Passes of a device that goes on by itself, asked for operation by operation on a stream of their
own: each while the one before it is computed.

Only for plans that name no token of the pass before. Must not decide what is computed.
"""

import time
from contextlib import suppress

import torch
from torch import Tensor

from common.engine.device_thread import MOST_UNANSWERED, Waiting
from common.engine.plan import Draw, Drawn, PassPlan, PassResult, Piece, pack
from common.engine.runner import Runner
from common.engine.stream import Stream, device_fails_for_good, ends_before_it_fails
from common.ids import PageId, TransferId
from common.kernels import ops
from common.kernels.triton.configs import decode_items
from common.kernels.triton.sampling_rows import SamplingRows
from common.params import SamplingParams
from common.sampling import all_drawn


class PassStream:
    """Implements what `common.engine.device_thread.AsyncDeviceThread` begins passes by."""

    def __init__(self, runner: Runner, stream: Stream, *, most_draws: int) -> None:
        """`most_draws`: of a pass; one with more takes memory for them."""
        self._runner, self._stream, self._most_draws = runner, stream, most_draws
        self._incoming = [stream.pinned(most_draws, torch.int64) for _ in range(MOST_UNANSWERED)]
        self._turn = 0
        self._free_at = 0.0  # when the device had done all that was waited for

    def warm_up(self) -> None:
        """Draw, and compute what has one row a sequence, so that nothing is compiled for it while
        requests wait. Overwrites the pool's first page: only while none is in use."""
        draw = Draw(
            transfer=TransferId(""),
            attempt=0,
            sample=0,
            index=0,
            row=0,
            params=SamplingParams(max_tokens=1, seed=0),
            prompt=(0,),
            outputs=(),
        )
        cache = self._runner.cache
        for n in decode_items(cache.dtype, cache.spec.n_kv_heads, self._most_draws):
            arrays = pack([Piece([0], 0, [PageId(0)]) for _ in range(n)], cache.spec.page_tokens)
            with suppress(ArithmeticError):  # it is of no interest what a model says to that
                self.begin(PassPlan(**arrays, draws=(draw,)))()  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does

    @torch.inference_mode()
    def begin(self, plan: PassPlan) -> Waiting:
        """Ask for a pass; what waits for its end, and reads what it has drawn. Waits for it here if
        log-probabilities are asked for."""
        began = time.perf_counter()
        stream = self._stream
        with device_fails_for_good(), stream.work(), ends_before_it_fails(stream):
            if plan.scores or any(draw.params.logprobs is not None for draw in plan.draws):
                return self._computed(plan)
            return self._asked_for(plan, began)

    def _computed(self, plan: PassPlan) -> Waiting:
        result = self._runner.run(plan)
        self._stream.mark().synchronize()
        return lambda: result

    def _asked_for(self, plan: PassPlan, began: float) -> Waiting:
        """What it computes with may be let go of on return: the stream's memory is given out again
        in the stream's order."""
        hidden_TH = self._runner.hidden(plan)
        draws = plan.draws
        incoming = self._next_incoming(len(draws))
        if draws:
            logits_DV = self._runner.logits_of(hidden_TH, draws)
            incoming.copy_(self._drawn(logits_DV, draws), non_blocking=True)
        mark = self._stream.mark()

        def wait() -> PassResult:
            mark.synchronize()
            drawn = tuple(Drawn(token=token) for token in all_drawn(incoming.tolist()))
            now = time.perf_counter()
            seconds, self._free_at = now - max(began, self._free_at), now
            return PassResult(drawn=drawn, seconds=seconds)

        return wait

    def _drawn(self, logits_DV: Tensor, draws: tuple[Draw, ...]) -> Tensor:
        allowed = self._runner.allowed(draws)
        rows = SamplingRows.of(draws, allowed, logits_DV.shape[1], logits_DV.device)
        return ops.sample(logits_DV, rows)

    def _next_incoming(self, n_draws: int) -> Tensor:
        """Memory for the tokens of one more pass, while one is unanswered."""
        self._turn = (self._turn + 1) % MOST_UNANSWERED
        if n_draws > len(self._incoming[self._turn]):
            self._incoming[self._turn] = self._stream.pinned(n_draws, torch.int64)
        return self._incoming[self._turn][:n_draws]
