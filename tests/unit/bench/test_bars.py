import pytest

from bench.bars import Row, rows
from bench.steps import WORKS


def figures(**changed: float) -> dict[str, float]:
    """Exactly at each bar of a machine as fast as the bars' own."""
    made = {"packed_flops_per_s": 800e9, "linear_flops_per_s": 1000e9}
    floors = ((1, 319, 3.95, 6.0), (8, 319, 4.7, 9.0), (32, 319, 10.8, 26.0))
    for n, at, floor_ms, ms in (*floors, (1, 64, 3.9, 5.0), (1, 2048, 4.6, 6.0)):
        made[f"decode, batch {n} at {at}: floor_ms"] = floor_ms
        made[f"decode, batch {n} at {at}: ms"] = ms
    for n_tokens in (64, 256, 512, 2048):
        made[f"prefill, {n_tokens} after 0: floor_ms"] = n_tokens / 4
        made[f"openvino_ttft_{n_tokens}_ms"] = 100.0
        made[f"ttft_{n_tokens}_ms"] = 130.0
    made |= {"tpot_64_ms": 6.8, "tpot_2048_ms": 9.0}
    made |= {"llama_tpot_64_ms": 7.6, "llama_tpot_2048_ms": 10.0}
    for n, peer in ((8, 400.0), (32, 600.0)):
        made[f"openvino_tokens_per_s_{n}"] = peer
        for kind in ("colocated", "split"):
            made[f"{kind}_tokens_per_s_{n}"] = peer * (1.2 if n == 8 else 1.1)
            made[f"{kind}_p99_itl_ms_{n}"] = 21.0 if n == 8 else 80.0
    made |= {"sampled_tokens_per_s_32": 600.0, "handoff_gap_ms": 15.0, "handoff_step_ms": 10.0}
    return made | {"split_overhead_32": 0.05, "colocated_overhead_32": 0.05} | changed


def by_name(table: list[Row], name: str) -> Row:
    (found,) = (row for row in table if row.name.startswith(name))
    return found


def test_what_reaches_a_bar_exactly_has_met_it() -> None:
    assert all(row.met for row in rows(figures())), [r.name for r in rows(figures()) if not r.met]


@pytest.mark.parametrize(
    ("figure", "worse", "name"),
    [
        ("decode, batch 8 at 319: ms", 9.1, "decode step alone, batch 8"),
        ("packed_flops_per_s", 799e9, "prefill, packed"),
        ("tpot_2048_ms", 9.1, "TPOT, one stream, context 2048"),
        ("ttft_512_ms", 130.1, "TTFT, one stream, prompt 512"),
        ("split_tokens_per_s_8", 479.0, "8 at once, split: output"),
        ("split_p99_itl_ms_32", 80.1, "32 at once, 1 x 1"),
        ("handoff_gap_ms", 15.1, "handoff"),
        ("split_overhead_32", 0.051, "gateway"),
    ],
)
def test_what_is_worse_than_a_bar_misses_that_one(figure: str, worse: float, name: str) -> None:
    missed = [row.name for row in rows(figures(**{figure: worse})) if not row.met]
    assert missed
    assert all(row.startswith(name) for row in missed)


def test_an_absolute_bar_grows_with_the_floor_of_a_slower_machine_only() -> None:
    slow = rows(figures(**{"decode, batch 1 at 319: floor_ms": 7.9}))
    fast = rows(figures(**{"decode, batch 1 at 319: floor_ms": 2.0}))
    assert by_name(slow, "decode step alone, batch 1 ").bar == pytest.approx(12.0)
    assert by_name(fast, "decode step alone, batch 1 ").bar == 6.0


def test_a_rate_s_distance_from_its_ceiling_is_a_number_over_one() -> None:
    row = Row(name="x", unit="tok/s", measured=50, bar=40, least=True, floor=100)
    assert row.met
    assert row.over_floor == 2.0


def test_without_a_peer_its_rows_are_left_out() -> None:
    alone = {name: v for name, v in figures().items() if not name.startswith(("openvino", "llama"))}
    names = [row.name for row in rows(alone)]
    assert not [name for name in names if name.startswith("TTFT") or "output tokens" in name]
    assert by_name(rows(alone), "TPOT, one stream, context 64").met


def test_no_two_passes_that_are_measured_share_a_name() -> None:
    labels = [work.label for work in WORKS]
    assert len(set(labels)) == len(labels)
