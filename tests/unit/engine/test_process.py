"""What the system lets a process have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.engine.process import check_cpus, pin
from common.errors import SetupError
from common.spellings import spell_cpus

HOME = Path(__file__).parents[3]


def test_a_cpu_that_is_not_there_is_refused_with_those_that_are() -> None:
    before = os.sched_getaffinity(0)
    check_cpus(before)
    with pytest.raises(SetupError, match=r"there is no CPU .*4000 for this process; there are \d"):
        pin({*before, 4000})
    assert os.sched_getaffinity(0) == before


def test_a_process_that_is_pinned_may_still_be_pinned_elsewhere() -> None:
    """A server that runs on one CPU gives its workers others."""
    one, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("this machine lends one CPU")
    code = (
        f"import os; os.sched_setaffinity(0, {{{one}}})\n"
        f"from common.engine.process import pin; pin({others})\n"
        "print(*sorted(os.sched_getaffinity(0)), sep=',')"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HOME)
    assert told.stdout.strip() == ",".join(map(str, others)), (told.stderr, spell_cpus(others))
