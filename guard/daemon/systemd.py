"""The protocol of systemd's ``Type=notify``: a few words to the socket that it names; without one, nothing."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(*lines: str) -> None:
    """``READY=1``, ``WATCHDOG=1``, ``STOPPING=1``, ``STATUS=…``; see sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.sendto("\n".join(lines).encode(), address.replace("@", "\0", 1))


def watchdog() -> float | None:
    """Seconds within which systemd wants to hear of this process, or None."""
    usec, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    return int(usec) / 1e6 if usec.isdigit() and int(usec) and pid in ("", str(os.getpid())) else None
