import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).parents[3]
RAISE = """
import resource, sys
from launch.limits import open_files, raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
told = open_files()
raise_open_files()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
print(told == soft, soft, hard)
"""


@pytest.mark.parametrize(("soft", "hard", "raised"), [(256, 1024, 1024), (300, 300, 300)])
def test_open_files_are_as_many_as_the_system_allows(soft: int, hard: int, raised: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", RAISE, str(soft), str(hard)],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout == f"True {raised} {hard}\n"
