"""The hunt itself: lives replay, every fault happens, and bugs that are planted are found."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from bench.simulate.device import Device
from bench.simulate.faults import hunt, main
from common.ids import TransferId
from common.messages import PageRef
from common.wire import Numbers
from launch.gateway.core import GatewayCore
from launch.gateway.fleet import Fleet
from launch.gateway.transfers import Phase, Transfer
from prefill.handoff import Key, Leases

HOME = Path(__file__).parents[2]
ENOUGH = 200  # seeds, to find any of the planted bugs
MANY = 2000  # seeds that must break no law


@pytest.mark.slow
@pytest.mark.timeout(1200)  # 75 s of two free cores
def test_no_law_is_broken_and_every_fault_happens(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--seeds", str(MANY)])
    said = capsys.readouterr().out
    assert code == 0, said
    happened = json.loads(said.splitlines()[-1])["faults"]
    assert all(happened.values()), happened


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_no_law_is_broken_in_other_lives() -> None:
    assert main(["--first", str(MANY), "--seeds", str(MANY)]) == 0


def test_lives_replay_in_another_process() -> None:
    """Whatever order its sets have."""
    command = [sys.executable, "-m", "bench.simulate.faults", "--seeds", "8", "--processes", "1"]
    digests: set[str] = set()
    for salt in "12":
        done = subprocess.run(
            command,
            cwd=HOME,
            env={"PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(json.loads(done.stdout.splitlines()[-1])["digest"])
    assert len(digests) == 1


def test_a_broken_law_is_printed_with_what_replays_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Leases, "end", never_end)
    assert main(["--seeds", "1", "--processes", "1"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert "python -m bench.simulate.faults --seed 0 --trace" in said[1]
    assert json.loads(said[-1])["broken"] == [0]
    assert main(["--seed", "0", "--trace"]) == 1
    assert capsys.readouterr().out.splitlines()[-3:-1] == said[:2]


# --- planted bugs --------------------------------------------------------------------------------


def never_end(self: Leases, key: Key) -> None:
    """In the place of what gives a lease's pages back."""


def test_a_lease_that_is_never_released_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leases, "end", never_end)
    found = hunt(range(ENOUGH))
    assert found is not None
    assert "leased" in str(found.broken)


def test_a_stale_attempt_that_is_accepted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def current(self: GatewayCore, transfer_id: TransferId, _attempt: int) -> Transfer | None:
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.phase is Phase.UNROUTED:
            self.stale_messages += 1
            return None
        return transfer

    monkeypatch.setattr(GatewayCore, "_current", current)
    found = hunt(range(ENOUGH))
    assert found is not None
    assert "stale" in str(found.broken)


def test_messages_that_are_heard_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Numbers, "is_news", lambda *_: True)
    found = hunt(range(ENOUGH))
    assert found is not None
    assert "knows of it no more" in str(found.broken)


def test_a_lost_snapshot_that_nobody_misses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "has_missed", lambda *_: False)
    found = hunt(range(ENOUGH))
    assert found is not None
    assert "is idle, and is taken for" in str(found.broken)


def test_a_generation_that_is_checked_against_itself_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def are_still(self: Device, refs: Iterable[PageRef]) -> bool:
        now = {ref.page: int(self.generations[ref.page]) for ref in refs}
        return all(int(self.generations[page]) == generation for page, generation in now.items())

    monkeypatch.setattr(Device, "are_still", are_still)
    found = hunt(range(ENOUGH))
    assert found is not None
    assert "is valid, and page" in str(found.broken)
