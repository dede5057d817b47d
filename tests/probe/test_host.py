"""Limits of cores and memory, in trees that are made for the question."""

from __future__ import annotations

from pathlib import Path

import pytest

from parastrat.errors import ProbeError
from parastrat.hardware import HostSystem
from parastrat.probe.files import count_in_list
from parastrat.probe.host import read_cores, read_memory_bytes, read_numa_nodes, read_system


def tree(root: Path, **files: str) -> Path:
    written = {"sys/devices/system/cpu/online": "0-7", "proc/meminfo": "MemTotal: 1000 kB"}
    for name, text in {
        **written,
        **{key.replace("__", "/"): value for key, value in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("quota", "cores"),
    [
        ("max 100000", 8),
        ("400000 100000", 4),
        ("150000 100000", 1),
        ("50000 100000", 1),
        ("1600000 100000", 8),
    ],
)
def test_quota_of_cgroup_v2(tmp_path: Path, quota: str, cores: int) -> None:
    root = tree(tmp_path)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpu.max").write_text(quota)
    assert read_cores(root) == cores


def test_quota_of_any_group_above_the_process_counts(tmp_path: Path) -> None:
    root = tree(tmp_path, proc__self__cgroup="0::/slurm/job_7/step_0")
    for part, quota in (
        ("slurm", "max 100000"),
        ("slurm/job_7", "300000 100000"),
        ("slurm/job_7/step_0", "max 1"),
    ):
        group = root / "sys/fs/cgroup" / part
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.max").write_text(quota)
    assert read_cores(root) == 3


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2)])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, cores: int) -> None:
    root = tree(tmp_path, proc__self__cgroup="3:memory:/\n1:cpu,cpuacct:/box")
    group = root / "sys/fs/cgroup/cpu,cpuacct/box"
    group.mkdir(parents=True)
    (group / "cpu.cfs_quota_us").write_text(quota)
    (group / "cpu.cfs_period_us").write_text("100000")
    assert read_cores(root) == cores


def test_group_of_the_host_that_the_container_cannot_see(tmp_path: Path) -> None:
    root = tree(tmp_path, proc__self__cgroup="4:memory:/docker/abc")
    group = root / "sys/fs/cgroup/memory"
    group.mkdir(parents=True)
    (group / "memory.limit_in_bytes").write_text("500000")
    assert read_memory_bytes(root) == 500_000


def test_cpuset_counts(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/cpuset.cpus.effective").write_text("0-1,4")
    assert read_cores(root) == 3


@pytest.mark.parametrize(
    ("limit", "size"), [("max", 1_024_000), ("9223372036854771712", 1_024_000), ("4096", 4096)]
)
def test_memory_limit(tmp_path: Path, limit: str, size: int) -> None:
    root = tree(tmp_path)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "sys/fs/cgroup/memory.max").write_text(limit)
    assert read_memory_bytes(root) == size


def test_memory_that_is_not_stated_is_unknown(tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "proc/meminfo").write_text("MemFree: 1 kB\n")
    assert read_memory_bytes(root) is None


def test_a_limit_alone_does_not_make_the_memory_known(tmp_path: Path) -> None:
    root = tree(tmp_path, sys__fs__cgroup__memory__memory="x")
    (root / "proc/meminfo").unlink()
    (root / "sys/fs/cgroup/memory.max").write_text("4096")
    assert read_memory_bytes(root) is None


def test_numa_nodes(tmp_path: Path) -> None:
    assert read_numa_nodes(tree(tmp_path)) is None
    assert read_numa_nodes(tree(tmp_path, sys__devices__system__node__online="0-3,6")) == 5


def test_wsl_is_told_from_linux(tmp_path: Path) -> None:
    assert read_system(tree(tmp_path)) is HostSystem.LINUX
    version = "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@x) (gcc 11)"
    assert read_system(tree(tmp_path, proc__version=version)) is HostSystem.WSL2


def test_a_malformed_list_is_named() -> None:
    assert count_in_list("0-3,8,10-11\n") == 7
    with pytest.raises(ProbeError, match="0-x"):
        count_in_list("0-x")
