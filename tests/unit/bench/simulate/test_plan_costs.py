from pathlib import Path

import msgspec
import pytest

from bench.simulate import costs_file, plan_costs, published
from bench.simulate.costs_file import CostsFile


def test_a_published_set_is_the_simulators_own_and_could_be_a_file(tmp_path: Path) -> None:
    loaded = plan_costs.load("opt-13b")
    assert loaded.costs == published.costs_of(published.OPT_13B, published.A100_80G)
    assert loaded.page_bytes == 16 * 40 * 5120 * 2 * 2
    path = tmp_path / "costs.json"
    costs_file.write(path, loaded)
    assert plan_costs.load(str(path)) == loaded
    assert msgspec.convert(msgspec.to_builtins(loaded), CostsFile) == loaded


def test_a_file_that_is_not_there_is_told_with_what_is() -> None:
    with pytest.raises(ValueError, match=r"nowhere\.json: there is no such file; `baton profile`"):
        plan_costs.load("nowhere.json")
