"""The router looks at every worker once, and chooses as if it had priced every route."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from common.ids import InstanceId, PageHash, TransferId
from common.values import Disaggregate
from launch.gateway.prices import Price, Prices
from launch.gateway.router import Pair, route
from launch.gateway.views import Demand, WorkerView
from tests.unit.gateway.builders import hello, limits, snapshot

N_PAGES = 12
PAGES = tuple(PageHash(bytes([n])) for n in range(N_PAGES))
LIMITS = limits(n_pages=40, page_tokens=4, max_num_seqs=4)


@dataclass(frozen=True, slots=True)
class Question:
    demand: Demand
    prefills: list[WorkerView]
    decodes: list[WorkerView]
    barred: set[Pair]
    disaggregate: Disaggregate
    refused: set[InstanceId]


@st.composite
def workers(draw: st.DrawFn, role: str) -> list[WorkerView]:
    """Few values of everything, so that there are ties."""
    made: list[WorkerView] = []
    for n in range(draw(st.integers(0, 4))):
        view = WorkerView(hello(InstanceId(f"{role}-{n}"), LIMITS))
        told = snapshot(
            stored=PAGES[: draw(st.sampled_from((0, 0, 3, 7, N_PAGES)))],
            busy=draw(st.integers(0, 5)),
            queued_tokens=draw(st.sampled_from((0, 0, 10, 13, 400))),
            step_s=draw(st.sampled_from((0.0, 0.01, 0.02))),
            tokens_per_s=draw(st.sampled_from((0.0, 999.0, 1000.0, 1700.0))),
        )
        if draw(st.integers(0, 4)):
            assert view.take(structs.replace(told, free_pages=draw(st.integers(0, 40))))
        view.own_requests = draw(st.integers(0, 3))
        view.own_prompt_tokens = draw(st.sampled_from((0, 0, 50)))
        if draw(st.booleans()):
            view.own_coming[TransferId("t")] = draw(st.sampled_from((0.0, 1.01, 5.0)))
        if draw(st.booleans()):
            view.own_tpots_s[draw(st.sampled_from((0.01, 0.03, 0.1)))] += 1
        made.append(view)
    return made


@st.composite
def questions(draw: st.DrawFn) -> Question:
    prefills, decodes = draw(workers("prefill")), draw(workers("decode"))
    pairs = [(p.instance, d.instance) for p in prefills for d in decodes]
    names = [view.instance for view in (*prefills, *decodes)]
    owed = st.sampled_from((None, 0.01, 0.05, 0.5))
    return Question(
        Demand(
            n_tokens=4 * N_PAGES + draw(st.integers(0, 3)),
            max_tokens=draw(st.sampled_from((1, 50))),
            hashes=PAGES,
            ttft_s=draw(owed),
            tpot_s=draw(owed),
            now=1.0,
        ),
        prefills,
        decodes,
        draw(st.sets(st.sampled_from(pairs), max_size=4)) if pairs else set(),
        draw(st.sampled_from(("auto", "always", "never"))),
        draw(st.sets(st.sampled_from(names), max_size=2)) if names else set(),
    )


def cheapest(asked: Question) -> Price | None:
    """By the price of every pair, and of every decode worker alone."""
    prefills: Sequence[WorkerView] = () if asked.disaggregate == "never" else asked.prefills
    prices = Prices(asked.demand, prefills, asked.decodes, asked.refused)
    remote = [
        prices.remote(d, p)
        for d in asked.decodes
        for p in prefills
        if (p.instance, d.instance) not in asked.barred
    ]
    alone = [prices.local(d, shield=bool(remote)) for d in asked.decodes]
    willing = [one for one in alone if one.decode.instance not in asked.refused]
    if remote and asked.disaggregate == "always":
        willing = []
    priced = [*remote, *willing] or alone
    return min(priced, key=lambda one: one.rank, default=None)


@given(questions())
def test_the_choice_is_that_of_the_least_price(asked: Question) -> None:
    found = route(
        asked.demand,
        asked.prefills,
        asked.decodes,
        asked.barred,
        disaggregate=asked.disaggregate,
        refused=asked.refused,
    )
    best = cheapest(asked)
    if best is None:
        assert found is None
        return
    assert found is not None
    prefill = None if best.prefill is None else best.prefill.instance
    assert (found.prefill, found.decode) == (prefill, best.decode.instance)
    assert (found.in_time, found.ttft_s) == (not best.late, best.ttft_s)
