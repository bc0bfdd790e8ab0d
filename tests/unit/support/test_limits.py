"""Cores and memory that a process may use, by descriptions of control groups of both versions."""

import os

import pytest

from tilewright.support import limits, options


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A function that lays out files of control groups and makes this process a member."""
    monkeypatch.setattr(limits, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(limits, "SELF", tmp_path / "self")
    monkeypatch.setattr(limits, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(limits.os, "process_cpu_count", lambda: 16, raising=False)

    def make(member, **files):
        (tmp_path / "self").write_text(member)
        (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   16777216 kB\n")
        for name, content in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    return make


G = 1 << 30


@pytest.mark.parametrize(
    ("member", "files", "cores", "memory"),
    [
        ("0::/\n", {}, 16, 16 * G),
        ("0::/\n", {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "5\n"}, 16, 16 * G),
        ("0::/a/b\n", {"a/b/cpu.max": "250000 100000\n"}, 3, 16 * G),
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 1, 16 * G),
        ("0::/not/here\n", {"cpu.max": "200000 100000\n"}, 2, 16 * G),
        ("0::/../outside\n", {"cpu.max": "200000 100000\n"}, 16, 16 * G),
        (
            "0::/a\n",
            {
                "a/memory.max": f"{4 * G}\n",
                "a/memory.current": f"{3 * G}\n",
                "a/memory.stat": f"anon 1\ninactive_file {G}",
            },
            16,
            2 * G,
        ),
        (
            "5:cpu,cpuacct:/box\n4:memory:/box\n3:cpuset:/\n0::/\n",
            {
                "cpu,cpuacct/box/cpu.cfs_quota_us": "150000\n",
                "cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
                "memory/memory.limit_in_bytes": f"{(1 << 63) - 4096}\n",
                "memory/memory.usage_in_bytes": "1\n",
                "memory/box/memory.limit_in_bytes": f"{2 * G}\n",
                "memory/box/memory.usage_in_bytes": f"{3 * G}\n",
            },
            2,
            0,
        ),
        ("nonsense", {"cpu.max": "what\n"}, 16, 16 * G),
    ],
)
def test_control_groups(groups, monkeypatch, member, files, cores, memory):
    groups(member, **files)
    assert limits.usable_cores() == cores
    assert limits.free_memory() == memory
    monkeypatch.delenv("TILEWRIGHT_JOBS", raising=False)
    assert options.get("TILEWRIGHT_JOBS") == max(1, min(cores, memory // options.JOB_BYTES))
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    assert options.get("TILEWRIGHT_THREADS") == cores


def test_a_limit_that_changes_while_the_process_runs(groups, monkeypatch):
    """Of a group around its own, of either version, and of the affinity mask, in which the cpuset is."""
    groups("3:cpuset:/\n2:cpu:/a/b\n0::/c/d\n", **{"unified/c/d/cpu.max": "400000 100000\n"})
    assert limits.usable_cores() == 4
    groups("3:cpuset:/\n2:cpu:/a/b\n0::/c/d\n", **{"unified/c/cpu.max": "250000 100000\n"})
    assert limits.usable_cores() == 3
    files = {"cpu/a/cpu.cfs_quota_us": "20000\n", "cpu/a/cpu.cfs_period_us": "10000\n"}
    groups("2:cpu:/a/b\n0::/c/d\n", **files)
    assert limits.usable_cores() == 2 and limits.cpu_quota() == 2.0
    monkeypatch.setattr(limits.os, "process_cpu_count", lambda: 1)
    assert limits.usable_cores() == 1


def test_without_any_description(groups, tmp_path):
    groups("")
    os.remove(tmp_path / "meminfo")
    assert limits.free_memory() is None and options.default_jobs() == limits.usable_cores() == 16
