"""Whether the kernel has killed for lack of memory, as far as it says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Kills so far.

    Args:
        group: in this process's control group; 0 where it cannot be read.
        machine: anywhere on the machine, other people's included.
    """

    group: int = 0
    machine: int = 0

    def since(self, before: OutOfMemory) -> str:
        """What has come to it since, as half a sentence; or ""."""
        if self.group > before.group:
            return "the kernel killed a process of this job for lack of memory"
        if self.machine > before.machine:
            return "the kernel killed a process on this machine for lack of memory in that moment"
        return ""


def out_of_memory(root: Path = ROOT) -> OutOfMemory:
    """The counters of now."""
    return OutOfMemory(_group(root), _counter(root / "proc/vmstat"))


def _group(root: Path) -> int:
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0
    kills = 0
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        inside = path.lstrip("/")
        if not controllers:
            kills = max(kills, _counter(root / "sys/fs/cgroup" / inside / "memory.events"))
        elif controllers == "memory":
            kills = max(kills, _counter(root / "sys/fs/cgroup/memory" / inside / "memory.oom_control"))
    return kills


def _counter(file: Path) -> int:
    try:
        for line in file.read_text(encoding="ascii", errors="replace").splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
    except (OSError, ValueError):
        pass
    return 0
