import json
from pathlib import Path

import pytest

from bench.traces import Fitted, Row, fit, read


def mooncake(path: Path, *entries: tuple[int, int, int, list[int]]) -> Path:
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("\n".join(json.dumps(dict(zip(keys, e, strict=True))) for e in entries) + "\n")
    return path


def test_mooncakes_times_are_milliseconds_and_its_blocks_have_ids(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", (1500, 700, 5, [0, 1]), (4000, 512, 9, [0]))
    assert read(path) == [Row(0.0, 700, 5, (0, 1)), Row(2.5, 512, 9, (0,))]


def test_rows_are_put_in_the_order_of_time(tmp_path: Path) -> None:
    path = mooncake(tmp_path / "t.jsonl", (900, 2, 1, []), (400, 1, 1, []))
    assert read(path) == [Row(0.0, 1, 1), Row(0.5, 2, 1)]


def test_azures_table(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9305900,396,109\n"
    )
    first, second = read(path)
    assert (first.at_s, first.n_in, first.n_out) == (0.0, 374, 44)
    assert second.at_s == pytest.approx(4.25)


def test_burstgpts_table_without_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    assert read(path) == [Row(0.0, 472, 18), Row(113.0, 417, 276)]


def test_a_table_of_another_kind_is_refused_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="'a', 'b'"):
        read(path)


@pytest.mark.parametrize("line", ["6,GPT-4,many,18,490,log", "6,GPT-4", "noon,GPT-4,1,1,2,log"])
def test_a_row_of_another_form_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    header = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text(f"{header}\n5,ChatGPT,472,18,490,log\n{line}\n")
    with pytest.raises(ValueError, match=r"t\.csv:3: "):
        read(path)


def test_a_line_of_another_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1}\n{"timestamp": 1}\n')
    with pytest.raises(ValueError, match=r"t\.jsonl:2: .*`input_length`"):
        read(path)


def test_what_fits_stays_as_it_is() -> None:
    rows = [Row(0.0, 700, 5, (0, 1))]
    whole = [Fitted(0.0, 700, 5, ((0, 512), (1, 512)))]
    assert fit(rows, max_tokens=4096) == fit(rows, max_tokens=None) == whole


def test_all_lengths_are_scaled_by_one_factor_until_the_longest_fits() -> None:
    rows = [Row(0.0, 1000, 24, (7, 8)), Row(1.0, 100, 4)]
    assert fit(rows, max_tokens=256) == [
        Fitted(0.0, 250, 6, ((7, 128), (8, 128))),
        Fitted(1.0, 25, 1, ()),
    ]


def test_a_block_has_one_length_wherever_it_is_and_blocks_cover_their_prompt() -> None:
    rows = [Row(0.0, 5 * 512, 100, (1, 2, 3, 4, 5)), Row(0.0, 2 * 512 + 3, 9, (1, 2, 9))]
    for max_tokens in (100, 333, 777, 1000, 2000):
        long, short = fit(rows, max_tokens=max_tokens)
        assert long.n_in + long.n_out <= max_tokens
        assert long.blocks[:2] == short.blocks[:2]
        for row in (long, short):
            assert sum(tokens for _, tokens in row.blocks) >= row.n_in


def test_with_a_factor_of_ones_own_prompts_are_cut_to_fit() -> None:
    (row,) = fit([Row(0.0, 1000, 100)], max_tokens=256, length_scale=0.5)
    assert (row.n_in, row.n_out) == (206, 50)
    with pytest.raises(ValueError, match="100 tokens out"):
        fit([Row(0.0, 1000, 100)], max_tokens=64, length_scale=1.0)
