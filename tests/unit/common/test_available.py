import os
from pathlib import Path

import pytest

from common.available import available_bytes, cpu_quota, usable_cpus
from common.errors import SetupError

MACHINE = {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  5000 kB\n"}
MACHINE_BYTES = 5000 * 1024
V2 = {
    "proc/self/cgroup": "0::/box\n",
    "sys/fs/cgroup/box/memory.max": "3000000\n",
    "sys/fs/cgroup/box/memory.current": "2000000\n",
    "sys/fs/cgroup/box/memory.stat": "anon 1\nactive_file 300000\ninactive_file 400000\n",
}
V1 = {
    "proc/self/cgroup": "5:cpu,memory:/box\n1:cpuset:/\n0::/\n",
    "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "3000000",
    "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "2500000",
    "sys/fs/cgroup/memory/box/memory.stat": "cache 7\nactive_file 0\ninactive_file 0\n",
}
CONTAINER = {
    "proc/self/cgroup": "0::/../elsewhere\n",
    "sys/fs/cgroup/memory.max": "100",
    "sys/fs/cgroup/memory.current": "200",
    "sys/fs/cgroup/memory.stat": "",
}


def write(files: dict[str, str], root: Path) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, MACHINE_BYTES),
        (V2, 1_700_000),
        (V2 | {"sys/fs/cgroup/box/memory.max": "max\n"}, MACHINE_BYTES),
        (V1, 500_000),
        (
            V1 | {"sys/fs/cgroup/memory/box/memory.limit_in_bytes": "9223372036854771712"},
            MACHINE_BYTES,
        ),
        (CONTAINER, 0),
    ],
    ids=["bare", "v2", "v2-no-limit", "v1", "v1-no-limit", "container-over-its-limit"],
)
def test_the_tightest_limit_counts(files: dict[str, str], available: int, tmp_path: Path) -> None:
    write(MACHINE | files, tmp_path)
    assert available_bytes(tmp_path) == available


def test_a_kernel_that_does_not_tell_is_named(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1 kB\n")
    with pytest.raises(SetupError, match="how much memory"):
        available_bytes(tmp_path)


def test_this_machine_tells() -> None:
    assert available_bytes() > 2**20


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({}, None),
        ({"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/box\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
                "sys/fs/cgroup/box/cpu.max": "25000 50000\n",
            },
            0.5,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/box\n",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "300000",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            },
            3.0,
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            None,
        ),
    ],
    ids=["bare", "container", "v2", "v1", "v1-no-limit"],
)
def test_a_cgroup_may_get_less_than_its_cpus(
    files: dict[str, str], quota: float | None, tmp_path: Path
) -> None:
    write(files, tmp_path)
    assert cpu_quota(tmp_path) == quota


def test_a_fraction_of_a_cpu_is_worth_a_thread(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    assert usable_cpus(tmp_path) == cpus
    write({"sys/fs/cgroup/cpu.max": "10000 100000\n"}, tmp_path)
    assert usable_cpus(tmp_path) == cpus[:1]
