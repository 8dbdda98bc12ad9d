"""Who a process is: a pid may be another's by now, a pid with its start time and boot may not."""

from __future__ import annotations

import functools
import os
from pathlib import Path


@functools.cache
def boot_id() -> str:
    """Names this boot of this host; "" where the kernel does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def started(pid: int) -> str | None:
    """Start time of a process as the kernel counts it, so that a reused pid is not taken for the old one; None if there
    is no such process, or only what its parent has not fetched yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return None if stat[0] in "ZX" else stat[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError, ValueError):
        return None
    return "unknown"
