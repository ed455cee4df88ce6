"""Decode passes by captured graphs say what passes say that are computed one by one."""

import ast
import inspect
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pytest

from common.engine.plan import Drawn, PassPlan, PassResult, ScorePrompt
from common.ids import TransferId
from common.params import SamplingParams
from common.text.grammar import of_regex
from decode.device_block import DeviceBlock
from decode.draw_inputs import DrawInputs
from decode.drawn_rows import DrawnRows
from decode.graphs import GraphRunner, buckets
from decode.step_inputs import StepInputs
from decode.wide_rows import WideRows
from tests.conformance.kernels.in_triton.recorded_graphs import WAITS, RecordedStream
from tests.conformance.kernels.in_triton.small_steps import (
    END,
    MAX_LEN,
    VOCAB,
    Sequences,
    one_by_one,
    small_runner,
)

pytestmark = pytest.mark.usefixtures("path")

BROKEN = VOCAB - 2  # a token after which no logit is finite
ASKED = {"copy_", "slice", "select", "view", "alias", "detach", "_reshape_alias", "lift_fresh"}
GREEDY = SamplingParams(max_tokens=99, seed=5, temperature=0.0)
DRAWN = SamplingParams(max_tokens=99, seed=6, temperature=0.9)
PENALISED = {"repetition_penalty": 1.4, "frequency_penalty": 0.6}
RULES = {
    "a": msgspec.structs.replace(GREEDY, **PENALISED),
    "b": msgspec.structs.replace(
        DRAWN, presence_penalty=0.8, logit_bias=((3, 4.0), (END, 9.0)), min_tokens=4,
        end_token_ids=(END,), logprobs=2,
    ),
    "c": msgspec.structs.replace(
        GREEDY, grammar=of_regex("(ab|cd|e[f-k])*"), frequency_penalty=0.2, logprobs=0
    ),
    "d": DRAWN,
    "e": msgspec.structs.replace(DRAWN, seed=7, **PENALISED, logprobs=20),
}  # fmt: skip


def made(stream: RecordedStream, n_sequences: int, max_num_seqs: int, **told: int) -> GraphRunner:
    graphs = GraphRunner(
        small_runner(n_sequences, **told),
        stream,
        max_num_seqs=max_num_seqs,
        max_model_len=MAX_LEN,
        n_vocab=VOCAB,
    )
    graphs.capture(lambda *_: None)
    return graphs


@pytest.fixture
def stream() -> RecordedStream:
    return RecordedStream()


@pytest.fixture
def graphs(stream: RecordedStream) -> Iterator[GraphRunner]:
    yield made(stream, 2, 2, broken=BROKEN)


@dataclass
class Began:
    """What a pass was asked for by, and how often somebody waited meanwhile."""

    plan: PassPlan
    asked: set[str]
    n_waits: int


def served(
    graphs: GraphRunner, stream: RecordedStream, rules: dict[str, SamplingParams], passes: str
) -> tuple[list[Began], list[tuple[Drawn, ...]]]:
    """Each is begun when the one before was, and read when the next is."""
    sequences = Sequences(rules)
    began: list[Began] = []
    said: list[tuple[Drawn, ...]] = []
    waiting = None
    for names in [of_pass.split() for of_pass in passes.split("|")]:
        plan = sequences.plan(names)
        stream.asked.clear()
        stream.n_waits = 0
        begun = graphs.begin(plan)
        began.append(Began(plan, set(stream.asked), stream.n_waits))
        for earlier, result in [waiting] if waiting else []:
            sequences.read(earlier, result())
            said.append(result().drawn)
        waiting = (names, begun)
    assert waiting is not None
    return began, [*said, waiting[1]().drawn]


def check_said(began: Sequence[Began], said: list[tuple[Drawn, ...]], n_sequences: int) -> None:
    assert said == one_by_one(n_sequences, [one.plan for one in began])


def test_a_step_asks_for_copies_alone_and_waits_for_nothing_but_for_grammars(
    stream: RecordedStream,
) -> None:
    """Batches shrink and change places, prompts come beside them, who lost its pages is computed
    anew, and of four histories there is room for three."""
    passes = "a b|b a|a|a c|c a|b! c|c b|b d|e d b|a e b|c a|a c"
    began, said = served(made(stream, 5, 3), stream, RULES, passes)
    for one in began:
        params = [draw.params for draw in one.plan.draws]
        assert not one.asked & set(WAITS)
        assert one.n_waits == 0 or any(p.grammar for p in params)
        if one.plan.n_rows == len(params):
            assert one.asked <= ASKED
    assert sum(one.plan.n_rows == len(one.plan.draws) for one in began) == 7  # by graphs
    check_said(began, said, 5)


def test_more_alternatives_than_graphs_tell_are_waited_for(
    graphs: GraphRunner, stream: RecordedStream
) -> None:
    rules = {"a": msgspec.structs.replace(GREEDY, logprobs=30)}
    began, said = served(graphs, stream, rules, "a|a")
    assert [one.n_waits for one in began] == [1, 1]
    check_said(began, said, 1)


def test_outputs_that_are_drawn_elsewhere_or_again_are_counted_anew(graphs: GraphRunner) -> None:
    """Elsewhere: of a prompt that is scored. Again: what was drawn did not count."""
    sequences = Sequences({"a": RULES["a"]})
    (only,) = sequences.all.values()
    plans: list[PassPlan] = []
    said: list[tuple[Drawn, ...]] = []
    scored = ScorePrompt(
        transfer=TransferId("a"), attempt=0, first_row=0, targets=(only.prompt[1],), n_top=1
    )
    for scores in ((scored,), (), (), (), ()):
        plans.append(replace(sequences.plan("a"), scores=scores))
        said.append(graphs.begin(plans[-1])().drawn)
        sequences.read("a", PassResult(drawn=said[-1]))
        if len(plans) == 3:
            only.outputs.pop()
            only.n_kv -= 1
    assert said == one_by_one(1, plans)
    assert plans[2].draws[0].index == plans[3].draws[0].index


@pytest.mark.parametrize(("n_samples", "n_waits"), [(2, 0), (3, 1)])
def test_samples_of_a_prompt_are_waited_for_if_they_are_more_than_rows(
    graphs: GraphRunner, stream: RecordedStream, n_samples: int, n_waits: int
) -> None:
    plan = Sequences({"b": RULES["b"]}).plan("b")
    (only,) = plan.draws
    plan = replace(
        plan, draws=tuple(msgspec.structs.replace(only, sample=n) for n in range(n_samples))
    )
    stream.n_waits = 0
    wait = graphs.begin(plan)
    assert stream.n_waits == n_waits
    assert [wait().drawn] == one_by_one(1, [plan])


def test_a_step_tells_when_the_device_could_begin_it(graphs: GraphRunner) -> None:
    sequences = Sequences({"a": GREEDY})
    assert graphs.begin(sequences.plan(["a"]))().asked_at == 0  # a prompt: operation by operation
    began = time.perf_counter()
    waiting = graphs.begin(sequences.plan(["a"]))
    assert began < waiting().asked_at < time.perf_counter()


def known(plan: PassPlan, token: int) -> PassPlan:
    """Of one row, whose token it is."""
    nobody = np.zeros(0, np.int64)
    return replace(plan, tokens_T=np.array([token]), unread_rows_U=nobody, unread_draws_U=nobody)


def test_a_pass_that_fails_takes_the_next_with_it_and_no_more(graphs: GraphRunner) -> None:
    sequences = Sequences({"a": GREEDY, "b": GREEDY})
    graphs.begin(sequences.plan(["a"]))()
    first = graphs.begin(known(sequences.plan(["a"]), BROKEN))
    second = graphs.begin(sequences.plan(["a"]))
    for wait in (first, second):
        with pytest.raises(ArithmeticError):
            wait()
    scores = (ScorePrompt(transfer=TransferId("a"), attempt=0, first_row=0, targets=(), n_top=0),)
    with pytest.raises(ArithmeticError):  # nor one that is planned before that is known
        graphs.begin(replace(sequences.plan(["a"]), scores=scores))
    with pytest.raises(IndexError):
        graphs.begin(sequences.plan(["a"]))
    assert graphs.begin(sequences.plan(["b"]))().drawn[0].token >= 0


def test_what_was_asked_for_of_a_pass_that_cannot_be_has_ended_when_that_is_told(
    graphs: GraphRunner, stream: RecordedStream
) -> None:
    """Of a step whose grammar follows a token that could not be drawn: its pages may be somebody
    else's from then on, on another stream."""
    sequences = Sequences({"a": RULES["c"], "b": GREEDY})
    graphs.begin(sequences.plan(["a"]))()
    graphs.begin(known(sequences.plan(["a"]), BROKEN))
    stream.n_waits = 0
    with pytest.raises(ArithmeticError):
        graphs.begin(sequences.plan(["a"]))
    assert stream.n_waits == 2  # for the pass before, and for what was asked for of this one


@pytest.mark.parametrize(
    ("most", "rows"), [(1, (1,)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20))]
)
def test_graphs_are_captured_for_some_numbers_of_rows(most: int, rows: tuple[int, ...]) -> None:
    assert buckets(most) == rows


LOOP = (
    GraphRunner._asked_for, GraphRunner._compute, GraphRunner._ask_for_draws, StepInputs.tell,
    StepInputs._tell_tables, DrawInputs.tell, DrawInputs._seat, DrawInputs._tell_histories,
    DrawInputs._tell_biases, DrawInputs._tell_masks, DrawInputs.drawn, WideRows.seat,
    DeviceBlock.send, DrawnRows.ask_for_tokens, DrawnRows.ask_for_logprobs,
)  # fmt: skip


@pytest.mark.parametrize("method", LOOP, ids=lambda method: method.__qualname__)
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
