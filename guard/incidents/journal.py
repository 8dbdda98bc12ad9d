"""The journal's format: one JSON object a line, written whole, read up to the last whole line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guard.incidents.shape import check_shape
from guard.types import Entry

VERSION = 1
NAME = "journal.jsonl"


def encode(entry: Entry) -> bytes:
    """One line, newline included. Non-finite floats become strings, because JSON has none; `float` reads them back."""
    try:
        text = json.dumps(entry, allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=str)
    except ValueError:
        text = json.dumps(_finite(entry), ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value


class Follower:
    """Reads a growing journal. A torn last line is left for the next `read`; a damaged one is passed over and counted.

    Args:
        path: the file; it need not exist yet.
        offset: byte at which to go on, as `Follower.offset` said before.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path, self.offset, self.damaged = path, offset, 0

    def read(self, *, sync: bool = False) -> Iterator[Entry]:
        """The entries that are new since the last call; with `sync` they are on the disk before they are given out."""
        try:
            with self.path.open("rb") as file:
                if sync:
                    os.fsync(file.fileno())
                file.seek(self.offset)
                data = file.read()
        except OSError:  # not there yet, or a disk that does not answer now: there will be another time
            return
        end = data.rfind(b"\n") + 1
        self.offset += end
        for line in filter(None, data[:end].splitlines()):
            try:
                entry = json.loads(line)
                check_shape(entry)
            except (ValueError, TypeError, KeyError, RecursionError):
                self.damaged += 1
                continue
            yield entry


def read_journal(run_dir: Path) -> list[Entry]:
    """All entries of a run directory's journal, oldest first; empty if there is none."""
    return list(Follower(run_dir / NAME).read())
