"""`torch.cuda`'s streams and graphs without a GPU, as far as `common.engine.stream.Stream` goes.

A graph is what torch's dispatcher and Triton's launcher were asked for while it was captured: those
operations, with those tensors and numbers. A replay does them again and runs none of the code that
asked for them, so it sees what lies in the same memory by then, and nothing else. What is captured
may not wait for the device, and kernels are not run while they are captured.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from triton.runtime.interpreter import GridExecutor

from common.engine.stream import InMemory, Mark

WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "unique", "item")

Operation = Callable[[], object]


class RecordedStream(InMemory):
    """asked   names of the operations that were asked for in `work`, outside of graphs
    on_mark  called when somebody waits for a mark"""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.n_waits = 0

    @contextmanager
    def work(self) -> Iterator[None]:
        with _Watch(self.asked):
            yield

    def mark(self) -> Mark:
        return _Mark(self)

    def capture(self, work: Callable[[], object]) -> "Recording":
        with _Recorder() as recorder:
            work()
        return Recording(recorder.operations)


class _Mark:
    def __init__(self, stream: RecordedStream) -> None:
        self._stream = stream

    def synchronize(self) -> None:
        self._stream.n_waits += 1


class Recording:
    def __init__(self, operations: list[Operation]) -> None:
        self.operations = operations

    def replay(self) -> None:
        with _nothing_watches():
            for operation in self.operations:
                operation()


class _Watch(TorchDispatchMode):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        self._names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    """And of Triton's launches: the launcher is theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._launch = GridExecutor.__call__

    def __enter__(self) -> "_Recorder":
        recorder = self

        def launched(self: GridExecutor, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
            recorder.operations.append(partial(recorder._launch, self, *args, **kwargs))

        GridExecutor.__call__ = launched
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:  # noqa: ANN401
        GridExecutor.__call__ = self._launch
        super().__exit__(*raised)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        name = func.overloadpacket.__name__
        assert name not in WAITS, f"{name} waits for the device, while a graph is captured"
        kwargs = kwargs or {}
        given = _memories((args, kwargs))
        result = func(*args, **kwargs)
        self.operations.append(partial(_again, func, args, kwargs, result, given))
        return result


def _again(func: Any, args: Any, kwargs: Any, result: Any, given: set[int]) -> None:  # noqa: ANN401
    """Into the memory that its results had."""
    for had, has in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
        if isinstance(had, Tensor) and had.untyped_storage().data_ptr() not in given:
            had.copy_(has)


def _memories(arguments: object) -> set[int]:
    leaves = tree_leaves(arguments)
    return {leaf.untyped_storage().data_ptr() for leaf in leaves if isinstance(leaf, Tensor)}


@contextmanager
def _nothing_watches() -> Iterator[None]:
    with _disable_current_modes():
        yield
