import json
from pathlib import Path

import pytest

from bench.simulate.replay import lru, main, named, product, share_found
from bench.traces import Row
from common.ids import PageHash


def requests(*of: tuple[int, ...]) -> list[list[PageHash]]:
    return named([Row(0.0, 1, 1, ids) for ids in of])


def test_a_block_that_was_touched_stays() -> None:
    asked = requests((1, 2), (3,), (1, 2), (4,), (3,))  # 3 is the oldest when 4 comes
    assert share_found(asked, 3, lru) == pytest.approx(2 / 7)


def test_from_head_to_tail_the_head_goes_first_and_takes_the_rest_with_it() -> None:
    asked = requests((1, 2, 3), (4,), (1, 2, 3))
    assert share_found(asked, 3, lru) == 0.0  # 1 made room for 4, then each for the one before
    assert share_found(asked, 3, product) == pytest.approx(2 / 7)  # 3 made room


def test_a_pool_that_takes_everything_finds_all_repetitions() -> None:
    asked = requests((1, 2), (1, 2, 3), (1, 4))
    assert share_found(asked, 4, lru) == share_found(asked, 4, product) == pytest.approx(3 / 7)


def test_the_command_prints_shares_in_percent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.jsonl"
    line = {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [7, 8]}
    trace.write_text("".join(json.dumps(line) + "\n" for _ in range(4)))
    assert main(["--trace", str(trace), "--capacity", "2,5"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["capacity"] == [2, 5]
    assert found["percent"] == {"lru": [75.0, 75.0], "product": [75.0, 75.0]}


def test_a_request_that_no_pool_holds_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1, 2, 3]}\n'
    )
    with pytest.raises(SystemExit):
        main(["--trace", str(trace), "--capacity", "2"])
