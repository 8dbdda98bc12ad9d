from __future__ import annotations

from pathlib import Path

import pytest

from guard.daemon.kernel import OutOfMemory, out_of_memory


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("groups", "file"),
    [
        ("0::/job\n", "sys/fs/cgroup/job/memory.events"),
        ("9:cpu:/\n4:memory:/job\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control"),
    ],
)
def test_both_kinds_of_control_group(tmp_path, groups, file):
    write(tmp_path, "proc/vmstat", "pgfault 7\noom_kill 5\n")
    write(tmp_path, "proc/self/cgroup", groups)
    write(tmp_path, file, "under_oom 0\noom_kill 2\n")
    assert out_of_memory(tmp_path) == OutOfMemory(group=2, machine=5)


def test_a_kernel_that_says_nothing(tmp_path):
    assert out_of_memory(tmp_path) == OutOfMemory()
    write(tmp_path, "proc/vmstat", "oom_kill many\n")
    assert out_of_memory(tmp_path) == OutOfMemory()


def test_what_has_come_to_it():
    before = OutOfMemory(1, 4)
    assert OutOfMemory(1, 4).since(before) == ""
    assert "this job" in OutOfMemory(2, 5).since(before)
    assert "on this machine" in OutOfMemory(1, 5).since(before)
