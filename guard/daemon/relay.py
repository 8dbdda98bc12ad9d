"""Stands between a command and its supervisor: when the supervisor has died, the command can go on writing.

A program of its own, small and soon started: ``python -I -S relay.py FROM TO [FROM TO ...]``, file descriptors of
pipes. What it reads it passes on. While nobody reads on the other side it keeps the end of each stream, for a reader
that opens ``/proc/<pid of the relay>/fd/<TO>``. A reader that is only slow slows the command down, as in any pipe.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time

_KEPT = 1 << 20  # [bytes] of each stream, or more, while nobody reads; beside what the pipe holds
_CHUNK = 64 << 10
_AGAIN = 0.2  # [s] between looks whether somebody reads again
_LINGER = 60.0  # [s] for a reader that comes when the stream has ended


def pass_on(source: int, target: int) -> None:
    """Until the last writer has closed `source`, and what it has written is passed on or nobody comes for it."""
    comes = select.poll()
    comes.register(source, select.POLLIN)
    kept, ended, again, until = bytearray(), False, 0.0, 0.0
    while kept or not ended:
        if ended:
            time.sleep(max(0.0, again - time.monotonic()))
        elif not kept or comes.poll(_AGAIN * 1000):
            data = os.read(source, _CHUNK)
            kept += data
            if not data:
                ended, until = True, time.monotonic() + _LINGER
        if len(kept) > 2 * _KEPT:
            del kept[:-_KEPT]
        if (now := time.monotonic()) < again:
            continue
        try:
            while kept:
                del kept[: os.write(target, kept)]
        except BrokenPipeError:
            again = now + _AGAIN
            if ended and now > until:
                break
    os.close(target)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # it ends when there is nothing left to pass on
    fds = [int(word) for word in sys.argv[1:]]
    for pair in zip(fds[::2], fds[1::2]):  # noqa: B905 - they are pairs
        threading.Thread(target=pass_on, args=pair).start()
