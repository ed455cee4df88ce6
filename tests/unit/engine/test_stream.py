"""Streams, and the threads that ask them for passes; CUDA's calls are replaced, and no others."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from common.engine.device import Device
from common.engine.device_thread import AsyncDeviceThread
from common.engine.events import StepDone, StepFailed
from common.engine.plan import PassPlan, PassResult, Piece, pack
from common.engine.stream import CudaStream, InMemory, device_fails_for_good, open_stream
from common.errors import InvariantBroken
from common.ids import PageId, StepId

PLAN = PassPlan(**pack([Piece([1], 0, [PageId(0)])], 4))  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


class Cuda:
    """What a stream is asked for, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.reserved = 100
        self.cached = 0  # of that
        self.of_thread = dict[int, str]()
        self.has_failed = False

    def replace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = self

        class Event:
            def record(self, stream: str) -> None:
                cuda.asked.append(f"record on {stream}")

            def synchronize(self) -> None:
                cuda.asked.append(f"wait with {cuda.of_thread.get(threading.get_ident())}")
                if cuda.has_failed:
                    raise torch.AcceleratorError("an illegal memory access")

        class Graph:
            def pool(self) -> tuple[int, int]:
                return (0, 7)

        @contextmanager
        def capturing(_: Graph, **how: Any) -> Any:  # noqa: ANN401
            cuda.asked.append(f"capture into {how['pool']} on {how['stream']}")
            assert how["capture_error_mode"] == "thread_local"
            empty_cache()
            yield
            cuda.reserved += 50

        def empty_cache() -> None:
            cuda.reserved -= cuda.cached
            cuda.cached = 0

        def set_device(device: torch.device) -> None:
            cuda.of_thread[threading.get_ident()] = str(device)

        def work(stream: str) -> AbstractContextManager[str]:
            cuda.asked.append(f"{stream} with {cuda.of_thread.get(threading.get_ident())}")
            return nullcontext(stream)

        for name, fake in {
            "Stream": lambda device: f"stream of {device}",
            "stream": work,
            "empty_cache": empty_cache,
            "set_device": set_device,
            "Event": Event,
            "CUDAGraph": Graph,
            "graph": capturing,
            "memory_reserved": lambda _: cuda.reserved,
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    made.replace(monkeypatch)
    return made


def test_graphs_are_captured_on_the_stream_and_share_their_memory(cuda: Cuda) -> None:
    stream = open_stream(Device("cuda:1", 1))
    assert isinstance(stream, CudaStream)
    for n in range(2):
        cuda.reserved, cuda.cached = cuda.reserved + 40, 40  # by what was done to make ready for it
        stream.capture(lambda n=n: cuda.asked.append(f"work {n}"))
    assert cuda.asked == [
        "capture into None on stream of cuda:1",
        "work 0",
        "capture into (0, 7) on stream of cuda:1",
        "work 1",
    ]
    assert stream.graphs_bytes == 100


def test_every_thread_works_and_waits_with_the_stream_s_own_device(cuda: Cuda) -> None:
    """CUDA would make a context on the first device for one that asks with that, or goes back."""
    stream = open_stream(Device("cuda:1", 1))

    def work_and_wait() -> None:
        with stream.work():
            mark = stream.mark()
        waits = threading.Thread(target=mark.synchronize)
        waits.start()
        waits.join()

    works = threading.Thread(target=work_and_wait)
    works.start()
    works.join()
    assert cuda.asked == [
        "stream of cuda:1 with cuda:1",
        "record on stream of cuda:1",
        "wait with cuda:1",
    ]


def test_a_device_that_has_failed_is_a_bug_and_no_failed_pass(cuda: Cuda) -> None:
    mark = CudaStream(torch.device("cuda", 0)).mark()
    mark.synchronize()
    cuda.has_failed = True
    with pytest.raises(InvariantBroken, match="the device has failed: an illegal memory access"):
        mark.synchronize()
    with pytest.raises(torch.OutOfMemoryError), device_fails_for_good():
        raise torch.OutOfMemoryError


def test_in_memory_all_is_done_on_return_and_captured_work_is_done_again() -> None:
    stream, done = open_stream(Device("interpreter")), list[int]()
    assert isinstance(stream, InMemory)
    graph = stream.capture(lambda: done.append(1))
    assert done == []
    graph.replay()
    stream.mark().synchronize()
    assert done == [1]
    assert stream.pinned(3, torch.int64).tolist() == [0, 0, 0]


class Passes:
    """Each ends when it is let."""

    def __init__(self) -> None:
        self.begun: list[threading.Event] = []
        self.woken = threading.Semaphore(0)
        self.asked_at = 0.0
        self.thread = AsyncDeviceThread(self.begin, self.woken.release)

    def begin(self, plan: PassPlan) -> Callable[[], PassResult]:
        if plan.repeats == 2:
            raise ValueError("not so")
        may_end = threading.Event()
        self.begun.append(may_end)

        def wait() -> PassResult:
            assert may_end.wait(20)
            if plan.repeats == 3:
                raise InvariantBroken("a device has failed")
            return PassResult(seconds=float(len(self.begun)), asked_at=self.asked_at)

        return wait


def test_a_pass_is_begun_while_the_one_before_is_computed() -> None:
    passes = Passes()
    for step in (1, 2):
        passes.thread.launch(StepId(step), PLAN)
    while len(passes.begun) < 2:
        threading.Event().wait(0.001)
    assert passes.thread.finals() == []
    passes.begun[1].set()  # what ends first is told in its turn
    passes.begun[0].set()
    assert passes.woken.acquire(timeout=20)
    assert passes.woken.acquire(timeout=20)
    finals = passes.thread.finals()
    assert finals == [StepDone(StepId(n), PassResult(seconds=2.0)) for n in (1, 2)]
    assert passes.thread.close(20)


@pytest.mark.parametrize("asked_after_s", [None, 100.0])
def test_a_device_waits_for_a_pass_until_it_is_asked_for(asked_after_s: float | None) -> None:
    """Be it planned long before: the core must learn of it."""
    passes = Passes()
    if asked_after_s is not None:
        passes.asked_at = time.perf_counter() + asked_after_s
    for step in (1, 2):
        passes.thread.launch(StepId(step), PLAN)
    while len(passes.begun) < 2:
        threading.Event().wait(0.001)
    for begun in passes.begun:
        begun.set()
    assert passes.thread.close(20)
    second = passes.thread.finals()[1]
    assert isinstance(second, StepDone)
    assert (second.ready_s < 0) is (asked_after_s is not None)


def test_a_pass_that_cannot_be_begun_fails_in_its_turn() -> None:
    passes = Passes()
    passes.thread.launch(StepId(1), PLAN)
    passes.thread.launch(StepId(2), _marked(2))
    while not passes.begun:
        threading.Event().wait(0.001)
    assert passes.thread.finals() == []
    passes.begun[0].set()
    assert passes.thread.close(20)
    done, failed = passes.thread.finals()
    assert isinstance(done, StepDone)
    assert failed == StepFailed(StepId(2), "ValueError: not so")


def test_a_device_s_end_is_everybody_s() -> None:
    passes = Passes()
    passes.thread.launch(StepId(1), _marked(3))
    while not passes.begun:
        threading.Event().wait(0.001)
    passes.begun[0].set()
    assert passes.thread.close(20)
    with pytest.raises(InvariantBroken, match="a device has failed"):
        passes.thread.finals()


def _marked(repeats: int) -> PassPlan:
    return replace(PLAN, repeats=repeats)
