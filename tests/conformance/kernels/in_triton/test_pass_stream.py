"""Prefill's passes on a stream: asked for while the one before is computed, and what they draw is
what passes say that are computed one by one."""

import threading
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine import pass_stream
from common.engine.device_thread import AsyncDeviceThread
from common.engine.events import StepDone, StepFailed
from common.engine.pass_stream import PassStream
from common.engine.plan import Draw, PassPlan, PassResult, Piece, ScorePrompt, pack
from common.engine.runner import Runner
from common.engine.stream import InMemory, Mark
from common.errors import InvariantBroken
from common.ids import PageId, StepId, TransferId
from common.kernels.triton.rows import tensor_of
from common.kv.cache import KVCache
from common.kv.layout import KVSpec
from common.model.inputs import PassInputs
from common.model.llama import Llama
from common.model.packing import packed_layout
from common.model.rope import cos_sin_table
from common.params import SamplingParams
from tests.conformance.kernels.in_triton.recorded_graphs import WAITS, RecordedStream
from tests.property.test_invariance import SPEC

pytestmark = pytest.mark.usefixtures("path")

PAGE_TOKENS, N_PAGES, MAX_LEN, VOCAB = 4, 16, 24, 40
BROKEN = VOCAB - 1  # a token after which no logit is finite
SMALL = msgspec.structs.replace(
    SPEC, hidden_size=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, intermediate_size=32,
    vocab_size=VOCAB, max_position=MAX_LEN, tied_embeddings=False,
)  # fmt: skip
GREEDY = SamplingParams(max_tokens=99, seed=5, temperature=0.0)
RULES = SamplingParams(
    max_tokens=99, seed=6, temperature=0.9, top_p=0.9, repetition_penalty=1.4, min_tokens=2,
    end_token_ids=(3,), logit_bias=((7, 2.0),),
)  # fmt: skip
A = tuple((7 * n + 1) % 30 for n in range(11))
B = tuple((5 * n + 2) % 30 for n in range(5))
PAGES = {A: [PageId(n) for n in (3, 9, 4)], B: [PageId(n) for n in (5, 1)]}


def small_runner() -> Runner:
    generator = torch.Generator().manual_seed(0)

    def normal(name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return 1 + values / 4 if name.endswith("norm") else values * shape[-1] ** -0.5

    weights = {packed.name: normal(packed.name, packed.shape) for packed in packed_layout(SMALL)}
    weights["embed"][BROKEN] = torch.nan
    kv = KVSpec(n_layers=1, n_kv_heads=1, head_dim=16, page_tokens=PAGE_TOKENS, dtype="float32")
    model = Llama(SMALL, dict(weights), cos_sin_table(SMALL, MAX_LEN))
    return Runner(model, KVCache(kv, np.zeros((N_PAGES, kv.page_bytes), np.uint8)))


def plan(*chunks: tuple[tuple[int, ...], int, int], params: SamplingParams = GREEDY,
         n_samples: int = 1, n_scored: int = 0) -> PassPlan:  # fmt: skip
    """Of (prompt, first, end); who ends is drawn for."""
    pieces = [Piece(prompt[first:end], first, PAGES[prompt]) for prompt, first, end in chunks]
    arrays = pack(pieces, PAGE_TOKENS)
    draws = [
        Draw(
            transfer=TransferId(str(prompt)), attempt=0, sample=sample, index=0,
            row=piece.first_row + len(piece.tokens) - 1, params=params, prompt=prompt, outputs=(),
        )
        for piece, (prompt, _, end) in zip(pieces, chunks, strict=True)
        if end == len(prompt)
        for sample in range(n_samples)
    ]  # fmt: skip
    scores = [
        ScorePrompt(transfer=TransferId("t"), attempt=0, first_row=0, targets=A[1 : n_scored + 1],
                    n_top=2)
    ]  # fmt: skip
    return PassPlan(**arrays, draws=tuple(draws), scores=tuple(scores if n_scored else ()))  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


def plans() -> list[PassPlan]:
    """Chunks of one prompt, of which the second reads what the first writes; others beside it."""
    return [
        plan((A, 0, 8)),
        plan((A, 8, 11), (B, 0, 2), params=RULES, n_samples=3),
        plan((B, 2, 5)),
    ]


def tokens(result: PassResult) -> list[int]:
    return [drawn.token for drawn in result.drawn]


def test_tokens_are_those_of_passes_computed_one_by_one() -> None:
    stream = RecordedStream()
    passes, first, second, third = PassStream(small_runner(), stream, most_draws=2), *plans()
    begun = [passes.begin(first), passes.begin(second)]
    assert stream.n_waits == 0
    assert not set(stream.asked) & set(WAITS)
    said = [begun[0]()]
    begun.append(passes.begin(third))
    said += [wait() for wait in begun[1:]]
    runner = small_runner()
    assert [tokens(one) for one in said] == [tokens(runner.run(one)) for one in plans()]
    assert [len(one.drawn) for one in said] == [0, 3, 1]
    assert all(one.seconds > 0 for one in said)


def test_who_asks_for_log_probabilities_is_waited_for_and_told_them() -> None:
    stream = RecordedStream()
    passes = PassStream(small_runner(), stream, most_draws=2)
    wanted = [
        plan((A, 0, 11), params=msgspec.structs.replace(GREEDY, logprobs=2)),
        plan((A, 0, 8), n_scored=8),
    ]
    for one in wanted:
        wait = passes.begin(one)
        assert stream.n_waits > 0
        said, alone = wait(), small_runner().run(one)
        assert (said.drawn, said.scores) == (alone.drawn, alone.scores)


def test_what_was_asked_for_of_a_pass_that_cannot_be_has_ended_when_that_is_told() -> None:
    """Its pages may be somebody else's from then on, on another stream."""
    stream, runner = RecordedStream(), small_runner()
    runner.model.logits = _too_little_memory  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError):
        PassStream(runner, stream, most_draws=2).begin(plan((A, 0, 11)))
    assert "index_select" in stream.asked  # of embeddings: it had begun
    assert stream.n_waits == 1


def _too_little_memory(hidden_RH: Tensor) -> Tensor:
    raise torch.OutOfMemoryError(f"logits of {len(hidden_RH)}")


@pytest.mark.parametrize("is_broken", [False, True])
def test_it_is_warmed_up_by_a_draw(*, is_broken: bool) -> None:
    """Whatever the model says to it."""
    stream, runner = RecordedStream(), small_runner()
    if is_broken:
        runner.model.forward = _of_nan(runner)  # type: ignore[method-assign]
    PassStream(runner, stream, most_draws=2).warm_up()
    assert stream.n_waits == 1
    assert not runner.cache.pages_PB[1:].any()


def test_it_is_warmed_up_by_as_many_rows_as_have_kernels_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pass_stream, "decode_items", lambda *_: [1, 2])
    runner = small_runner()
    forward, rows = runner.model.forward, list[int]()

    def counted(inputs: PassInputs, kv: KVCache) -> Tensor:
        rows.append(len(inputs.tokens_T))
        return forward(inputs, kv)

    runner.model.forward = counted  # type: ignore[method-assign]
    PassStream(runner, RecordedStream(), most_draws=2).warm_up()
    assert rows == [1, 2]


def _of_nan(runner: Runner) -> Callable[[PassInputs, KVCache], Tensor]:
    forward = runner.model.forward
    return lambda inputs, kv: forward(inputs, kv) * torch.nan


class Gated(InMemory):
    """Marks are passed when they are let."""

    def __init__(self) -> None:
        self.marks: list[_Gate] = []

    def mark(self) -> Mark:
        self.marks.append(_Gate())
        return self.marks[-1]


class _Gate:
    def __init__(self) -> None:
        self.may_pass = threading.Event()
        self.has_failed = False

    def synchronize(self) -> None:
        assert self.may_pass.wait(20)
        if self.has_failed:
            raise InvariantBroken("the device has failed")


class Worker:
    """The threads of one, and its device."""

    def __init__(self) -> None:
        self.stream = Gated()
        self.woken = threading.Semaphore(0)
        passes = PassStream(small_runner(), self.stream, most_draws=2)
        self.thread = AsyncDeviceThread(passes.begin, self.woken.release)

    def launch(self, *wanted: PassPlan) -> None:
        """And see all of them asked for, none of them waited for."""
        for step, one in enumerate(wanted):
            self.thread.launch(StepId(step), one)
        until(lambda: len(self.stream.marks) == len(wanted))
        assert self.thread.finals() == []

    def let(self, n: int) -> list[StepDone | StepFailed]:
        """The n-th pass end."""
        self.stream.marks[n].may_pass.set()
        assert self.woken.acquire(timeout=20)
        return self.thread.finals()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(20_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError


def test_a_pass_is_asked_for_before_the_one_before_it_has_ended() -> None:
    worker = Worker()
    first, second, _ = plans()
    worker.launch(first, second)
    runner = small_runner()
    for n, one in enumerate((first, second)):
        (final,) = worker.let(n)
        assert isinstance(final, StepDone)
        assert final.step == n
        assert tokens(final.result) == tokens(runner.run(one))
    assert worker.thread.close(20)


def test_a_pass_that_fails_fails_alone() -> None:
    worker = Worker()
    broken = (BROKEN,) * 5
    PAGES[broken] = [PageId(7), PageId(8)]
    worker.launch(plan((broken, 0, 5)), plan((A, 0, 11)))
    (failed,) = worker.let(0)
    assert failed == StepFailed(StepId(0), "ArithmeticError: the logits have no finite maximum")
    (done,) = worker.let(1)
    assert isinstance(done, StepDone)
    assert tokens(done.result) == tokens(small_runner().run(plan((A, 0, 11))))
    assert worker.thread.close(20)


def test_a_device_that_fails_is_the_worker_s_end() -> None:
    worker = Worker()
    worker.launch(plan((A, 0, 8)), plan((A, 8, 11)))
    worker.stream.marks[0].has_failed = True
    with pytest.raises(InvariantBroken, match="the device has failed"):
        worker.let(0)
    worker.stream.marks[1].may_pass.set()
    assert worker.thread.close(20)


def test_a_device_copies_from_pinned_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From other memory CUDA may copy when it has done all that it was asked for before."""
    asked: list[str] = []

    def pin(x: Tensor) -> Tensor:
        asked.append("pin")
        return x

    def to(x: Tensor, device: torch.device, *, non_blocking: bool) -> Tensor:
        asked.append(f"to {device}, {'asked for' if non_blocking else 'waited for'}")
        return x

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    tensor_of(np.zeros(3, np.int64), torch.device("cuda", 1))
    assert asked == ["pin", "to cuda:1, asked for"]
    tensor_of(np.zeros(3, np.int64), torch.device("cpu"))
    assert asked[2:] == ["to cpu, asked for"]
