"""Prompts leave those who decode the time between tokens that these have asked for."""

import msgspec

from common.engine.pace import SHARE
from common.engine.plan import Drawn, PassResult
from common.messages import Expect
from tests.unit.decode.builders import Bench, expect

BASE_S, ROW_S = 4e-3, 1e-3


def seconds(bench: Bench) -> float:
    return BASE_S + ROW_S * bench.plan.n_rows


def done(bench: Bench) -> int:
    """The running pass took what its rows cost. Returns their number."""
    n_rows = bench.plan.n_rows
    drawn = tuple(Drawn(token=50) for _ in bench.plan.draws)
    bench.done(result=PassResult(drawn=drawn, seconds=seconds(bench)))
    return n_rows


def asking(tpot_s: float | None, prompt: int = 3, transfer: str = "t") -> Expect:
    plain = expect(prompt, transfer=transfer, prefill=None, max_tokens=200)
    return msgspec.structs.replace(plain, tpot_s=tpot_s)


def worker() -> Bench:
    """What passes of different sizes take is known to it."""
    bench = Bench(
        n_pages=400,
        max_model_len=400,
        max_num_batched_tokens=256,
        chunk_tokens=128,
        cache=False,
    )
    bench.hear(asking(None, 200, "before"))
    for _ in range(10):
        done(bench)
    return bench


def rows_beside(bench: Bench, request: Expect) -> list[int]:
    """Of the passes that compute a prompt of 150 tokens beside it."""
    bench.hear(request)
    done(bench)
    done(bench)
    bench.hear(asking(None, 150, "long"))
    done(bench)
    sizes: list[int] = []
    while bench.plan.n_rows > 3:
        sizes.append(done(bench))
    return sizes


def test_a_prompt_is_cut_to_the_time_that_is_asked_for() -> None:
    sizes = rows_beside(worker(), asking(0.05))
    most = (SHARE * 0.05 - BASE_S) / ROW_S
    assert len(sizes) > 2
    assert max(sizes) <= most + 1  # a token of each sequence is not cut
    assert sizes[0] >= most - 2


def test_without_a_stated_time_it_is_cut_as_ever() -> None:
    assert rows_beside(worker(), asking(None)) == [2 + 128, 2 + 22]


def test_a_prompt_advances_by_a_page_where_there_is_no_time_left() -> None:
    sizes = rows_beside(worker(), asking(0.001))
    assert sizes[0] == 2 + 1 + 4


def test_whoever_is_not_decoding_yet_asks_for_nothing() -> None:
    bench = worker()
    bench.hear(asking(0.001, 150, "long"))
    done(bench)
    assert done(bench) == 1 + 128
