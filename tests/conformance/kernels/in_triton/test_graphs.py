"""Decode steps by captured graphs: what is said is what passes say that are computed one by one."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from common.engine.plan import Draw, Drawn, PassPlan, Piece, filled, pack
from common.engine.runner import Runner
from common.ids import PageId, TransferId
from common.kv.cache import KVCache
from common.kv.layout import KVSpec
from common.model.llama import Llama
from common.model.packing import packed_layout
from common.model.rope import cos_sin_table
from common.params import SamplingParams
from decode.graphs import GraphRunner, buckets
from decode.step_inputs import StepInputs
from tests.conformance.kernels.in_triton.recorded_graphs import RecordedStream
from tests.property.test_invariance import SPEC

pytestmark = pytest.mark.usefixtures("path")

PAGE_TOKENS, N_PAGES, MAX_LEN, VOCAB = 4, 16, 24, 40
BROKEN = VOCAB - 1  # a token after which no logit is finite
SMALL = msgspec.structs.replace(
    SPEC, hidden_size=32, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=16, intermediate_size=32,
    vocab_size=VOCAB, max_position=MAX_LEN, tied_embeddings=False,
)  # fmt: skip
GREEDY = SamplingParams(max_tokens=99, seed=5, temperature=0.0)
RULES = {"a": GREEDY, "b": SamplingParams(max_tokens=99, seed=6, temperature=0.9, top_p=0.9)}
ASKED = {"copy_", "slice", "view", "alias", "detach", "_reshape_alias", "lift_fresh"}


def small_model() -> Llama:
    generator = torch.Generator().manual_seed(0)

    def normal(name: str, shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, generator=generator)
        return 1 + values / 4 if name.endswith("norm") else values * shape[-1] ** -0.5

    weights = {packed.name: normal(packed.name, packed.shape) for packed in packed_layout(SMALL)}
    weights["embed"][BROKEN] = torch.nan
    return Llama(SMALL, dict(weights), cos_sin_table(SMALL, MAX_LEN))


def small_runner() -> Runner:
    kv = KVSpec(n_layers=1, n_kv_heads=1, head_dim=16, page_tokens=PAGE_TOKENS, dtype="float32")
    return Runner(small_model(), KVCache(kv, np.zeros((N_PAGES, kv.page_bytes), np.uint8)))


@pytest.fixture
def stream() -> RecordedStream:
    return RecordedStream()


@pytest.fixture
def graphs(stream: RecordedStream) -> Iterator[GraphRunner]:
    made = GraphRunner(small_runner(), stream, max_num_seqs=2, max_model_len=MAX_LEN, n_vocab=VOCAB)
    made.capture(lambda *_: None)
    stream.asked.clear()
    stream.n_waits = 0
    yield made


class Told:
    """Sequences as a core plans them: it knows what was drawn a pass late."""

    def __init__(self) -> None:
        self.n_tokens = {"a": 5, "b": 2}
        self.n_outputs = {"a": 0, "b": 0}
        self.pages = {
            "a": [PageId(n) for n in (3, 9, 4, 0, 7, 12)],
            "b": [PageId(n) for n in (5, 1, 8, 2, 6, 13)],
        }

    def prompts(self) -> PassPlan:
        pieces = [Piece([(7 * n + len(who)) % 30 for n in range(self.n_tokens[who])], 0, pages)
                  for who, pages in self.pages.items()]  # fmt: skip
        return self._plan(pieces, list(self.pages), unread=None)

    def step(self, *names: str, after: tuple[str, ...], **changes: object) -> PassPlan:
        """Of the tokens that the pass `after` draws."""
        pieces = [Piece([0], self.n_tokens[who], self.pages[who]) for who in names]
        for who in names:
            self.n_tokens[who] += 1
        return self._plan(
            pieces, list(names), unread=[after.index(who) for who in names], **changes
        )

    def _plan(
        self, pieces: list[Piece], names: list[str], unread: list[int] | None, **changes: object
    ) -> PassPlan:
        arrays = pack(pieces, PAGE_TOKENS)
        draws: list[Draw] = []
        for who, piece in zip(names, pieces, strict=True):
            params = RULES[who] if not changes else msgspec.structs.replace(RULES[who], **changes)
            n_outputs = self.n_outputs[who]
            draws.append(
                Draw(
                    transfer=TransferId(who),
                    attempt=0,
                    sample=0,
                    index=n_outputs,
                    row=piece.first_row + len(piece.tokens) - 1,
                    params=params,
                    prompt=(1, 2),
                    outputs=(3,) * max(0, n_outputs - 1),
                )
            )
            self.n_outputs[who] += 1
        waits = {} if unread is None else {
            "unread_rows_U": np.arange(len(names)), "unread_draws_U": np.array(unread)
        }  # fmt: skip
        return PassPlan(**arrays, draws=tuple(draws), **waits)  # pyright: ignore[reportArgumentType] pack() names its arrays as PassPlan does


def plans() -> list[PassPlan]:
    told = Told()
    both = ("a", "b")
    return [
        told.prompts(),
        told.step("a", "b", after=both),
        told.step("b", "a", after=both),  # in other rows
        told.step("a", after=("b", "a")),
        told.step("a", after=("a",)),  # takes another page
        told.step("a", after=("a",), repetition_penalty=1.3),
        told.step("a", after=("a",)),
    ]


def one_by_one(runner: Runner, wanted: list[PassPlan]) -> list[list[int]]:
    before: tuple[Drawn, ...] = ()
    tokens: list[list[int]] = []
    for plan in wanted:
        before = runner.run(filled(plan, before)).drawn
        tokens.append([drawn.token for drawn in before])
    return tokens


def test_tokens_are_those_of_passes_computed_one_by_one(
    graphs: GraphRunner, stream: RecordedStream
) -> None:
    """Each is begun before the one before it was waited for, and nothing waits but for the end."""
    prompts, *steps = plans()
    begun = [graphs.begin(prompts)]
    stream.asked.clear()
    stream.n_waits = 0
    begun += [graphs.begin(step) for step in steps[:2]]
    assert set(stream.asked) <= ASKED
    assert stream.n_waits == 0
    said = [[drawn.token for drawn in wait().drawn] for wait in begun]
    for step in steps[2:]:
        said.append([drawn.token for drawn in graphs.begin(step)().drawn])
    assert said == one_by_one(small_runner(), plans())


def test_a_pass_that_fails_takes_the_next_with_it_and_no_more(graphs: GraphRunner) -> None:
    told = Told()
    broken = told.step("a", after=("a",))
    broken = replace(broken, tokens_T=np.array([BROKEN]), unread_rows_U=np.zeros(0, np.int64),
                     unread_draws_U=np.zeros(0, np.int64))  # fmt: skip
    first = graphs.begin(broken)
    second = graphs.begin(told.step("a", after=("a",)))
    for wait in (first, second):
        with pytest.raises(ArithmeticError):
            wait()
    with pytest.raises(ArithmeticError):  # nor one that is planned before that is known
        graphs.begin(told.step("a", after=("a",), repetition_penalty=1.3))
    with pytest.raises(IndexError):
        graphs.begin(told.step("a", after=("a",)))
    known = replace(told.step("b", after=("b",)), unread_rows_U=np.zeros(0, np.int64),
                    unread_draws_U=np.zeros(0, np.int64))  # fmt: skip
    assert graphs.begin(known)().drawn[0].token >= 0


@pytest.mark.parametrize(
    ("most", "rows"), [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20))]
)
def test_graphs_are_captured_for_some_numbers_of_rows(most: int, rows: tuple[int, ...]) -> None:
    assert buckets(most) == rows


@pytest.mark.parametrize("method", [GraphRunner._replayed, GraphRunner._replay, StepInputs.tell,
                                    StepInputs._seat, StepInputs._tell_tables])  # fmt: skip
def test_the_loop_names_nothing_that_waits_for_a_device_or_takes_its_memory(method: object) -> None:
    """But in what it gives back, to be called when the step is to be waited for."""
    source = ast.parse(textwrap.dedent(inspect.getsource(method)))  # type: ignore[arg-type]
    (function,) = source.body
    assert isinstance(function, ast.FunctionDef)
    inner = {id(n) for f in function.body if isinstance(f, ast.FunctionDef) for n in ast.walk(f)}
    names = {
        node.func.attr
        for node in ast.walk(function)
        if id(node) not in inner
        and isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
    }
    waits = {"item", "tolist", "cpu", "numpy", "synchronize", "to", "clone", "result"}
    takes = {"empty", "zeros", "full", "tensor", "from_numpy", "empty_like", "pinned"}
    assert not names & (waits | takes)
