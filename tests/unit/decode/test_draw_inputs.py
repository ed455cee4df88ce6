"""What tokens are drawn by, as it lies on a device: what the host tells of whom, and when."""

import msgspec
import numpy as np
import pytest
import torch

from common.engine.plan import Draw
from common.engine.stream import InMemory, Mark
from common.errors import InvariantBroken
from common.ids import TransferId
from common.kernels.triton.sampling_rows import IN_PROMPT, SamplingRows
from common.params import SamplingParams
from common.text.token_rules import TokenRules, allowed_bits
from decode.draw_inputs import DrawInputs
from decode.wide_rows import MOST_COMING

N_VOCAB, N_ROWS = 40, 3
END = 39
PLAIN = SamplingParams(max_tokens=9, seed=1)
PENALISED = msgspec.structs.replace(PLAIN, frequency_penalty=0.5)


class Waits(InMemory):
    """Counts them."""

    def __init__(self) -> None:
        self.n_waits = 0

    def mark(self) -> Mark:
        return _Mark(self)


class _Mark:
    def __init__(self, stream: Waits) -> None:
        self._stream = stream

    def synchronize(self) -> None:
        self._stream.n_waits += 1


def draw(
    name: str,
    outputs: tuple[int, ...] = (),
    params: SamplingParams = PENALISED,
    index: int | None = None,
) -> Draw:
    return Draw(
        transfer=TransferId(name), attempt=0, sample=0, row=0, params=params, prompt=(5,),
        outputs=outputs, index=len(outputs) if index is None else index,
    )  # fmt: skip


def told(inputs: DrawInputs, *draws: Draw) -> SamplingRows:
    inputs.tell(draws, {})
    inputs.drawn(draws)
    return inputs.drawing(N_ROWS)


def counts(rows: SamplingRows, row: int) -> dict[int, int]:
    """By token, of the row's history."""
    history_V = rows.history_HV[rows.history_R[row]].tolist()
    return {token: n for token, n in enumerate(history_V) if n}


def test_who_goes_on_is_not_told_again_and_who_comes_back_is() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())
    assert counts(told(inputs, draw("a", (7, 7, 8))), 0) == {7: 2, 8: 1}
    rows = told(inputs, draw("b", params=PLAIN), draw("a", (7, 7, 8), index=4))
    assert counts(rows, 1) == {7: 2, 8: 1}  # what it has drawn meanwhile is the draw's to count
    assert rows.history_R[0] == rows.history_R[2] == -1
    assert counts(told(inputs, draw("a", (7,))), 0) == {7: 1}  # what was drawn did not count
    inputs.forget([draw("a")])
    assert counts(told(inputs, draw("a", (7, 9))), 0) == {7: 1, 9: 1}


def test_prompts_are_told_where_repetition_is_penalised() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())
    repeats = msgspec.structs.replace(PLAIN, repetition_penalty=1.2)
    assert counts(told(inputs, draw("a", (5,), repeats)), 0) == {5: IN_PROMPT + 1}


def test_a_history_that_is_not_there_needs_all_outputs() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())
    assert inputs.lacks_outputs(draw("a", (7,), index=2))
    assert not inputs.lacks_outputs(draw("a", (7,), PLAIN, index=2))
    with pytest.raises(InvariantBroken):
        told(inputs, draw("a", (7,), index=2))
    told(inputs, draw("b", (7,)))
    assert not inputs.lacks_outputs(draw("b", (7,), index=2))


def test_masks_that_follow_outputs_need_all_of_them() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())

    def lacks(grammar: str) -> bool:
        params = msgspec.structs.replace(PLAIN, grammar=grammar)
        return inputs.lacks_outputs(draw("a", (), params, index=1))

    few = allowed_bits([3, 4], N_VOCAB)
    one, two = TokenRules(vocab_size=N_VOCAB, allowed_bits=few), "start: X"
    assert lacks(two)
    assert not lacks(one.to_text())
    assert not lacks(msgspec.structs.replace(one, bad_words=((7,),)).to_text())
    assert lacks(msgspec.structs.replace(one, bad_words=((7, 8),)).to_text())
    assert lacks(msgspec.structs.replace(one, grammar=two).to_text())


def test_places_are_for_those_of_the_pass_and_then_for_who_was_last() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())
    for name in "abc":
        told(inputs, draw(name, (ord(name) - 90,)))
    rows = told(inputs, draw("d", (1,)), draw("a", (7,), index=2))
    assert counts(rows, 0) == {1: 1}
    assert counts(rows, 1) == {7: 1}
    assert inputs.lacks_outputs(draw("b", (), index=1))
    assert not inputs.lacks_outputs(draw("c", (), index=2))


def test_ends_are_masked_until_there_are_tokens_enough() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())
    params = msgspec.structs.replace(
        PLAIN, min_tokens=2, end_token_ids=(END,), logit_bias=((3, 1.5),)
    )
    for index, of_end in ((0, -np.inf), (1, -np.inf), (2, 0.0)):
        rows = told(inputs, draw("a", (), params, index=index))
        bias_V = rows.bias_SV[rows.bias_R[0]]
        assert bias_V[[3, END]].tolist() == [1.5, of_end]
    free = msgspec.structs.replace(params, logit_bias=())
    assert [told(inputs, draw("b", (), free, index=n)).bias_R[0] >= 0 for n in (1, 2)] == [1, 0]


def test_a_mask_is_a_bit_a_token() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())
    allowed_V = np.zeros(N_VOCAB, np.bool_)
    allowed_V[[0, 31, 32, 39]] = True
    inputs.tell([draw("a"), draw("b")], {1: allowed_V})
    rows = inputs.drawing(N_ROWS)
    assert rows.mask_R.tolist() == [-1, 0, -1]
    assert rows.mask_MW[0].view(torch.uint8).tolist() == [1, 0, 0, 128, 129, 0, 0, 0]


def test_rows_that_want_log_probabilities_say_how_many_as_far_as_graphs_find_them() -> None:
    inputs = DrawInputs(N_ROWS, N_VOCAB, InMemory())
    wanting = [msgspec.structs.replace(PLAIN, logprobs=n) for n in (0, 20, 21)]
    told(inputs, *(draw(str(n), (), params) for n, params in enumerate(wanting)))
    assert inputs.logprobs(N_ROWS).wanted_R.tolist() == [0, 20, -1]
    told(inputs, draw("x", (), PLAIN))
    assert inputs.logprobs(N_ROWS).wanted_R.tolist() == [-1, -1, -1]


def test_more_who_come_at_once_than_there_is_memory_for_wait() -> None:
    stream = Waits()
    inputs = DrawInputs(MOST_COMING + 1, N_VOCAB, stream)
    coming = [draw(str(n), (n,)) for n in range(MOST_COMING + 1)]
    inputs.tell(coming[:-1], {})
    assert stream.n_waits == 0
    inputs.tell(coming, {})
    assert stream.n_waits == 1
    rows = inputs.drawing(len(coming))
    assert [counts(rows, n) for n in range(len(coming))] == [{n: 1} for n in range(len(coming))]
