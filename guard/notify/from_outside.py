"""Faults that only those outside can see, in words: the process is gone, or it hangs. Plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from guard.notify.words import as_float, one_line, span
from guard.types import Incident

HAPPENED = {"crash": "crashed", "hang": "hung"}  # by detector
_LINES, _PROCESSES, _WIDTH = 20, 8, 160  # shown at most: lines of one text, processes, characters of a line


def what(incident: Incident, *, still: bool = False) -> str:
    """``the run hung (rank 3, no progress for 12 min)``.

    Args:
        still: it hangs yet.
    """
    if incident.detector != "hang":
        return "the run crashed"
    value = _detection(incident).get("value")
    lasted = f"no progress for {span(seconds)}" if (seconds := as_float(value)) > 0 else ""
    rank = incident.evidence.get("rank")
    details = ", ".join(part for part in ("" if rank is None else f"rank {one_line(rank, 20)}", lasted) if part)
    return f"the run {'hangs' if still else 'hung'}" + (f" ({details})" if details else "")


def who_restarts(incident: Incident) -> str:
    """``nobody starts it again``: the clause of whoever wrote it down; "" if it is not known."""
    return re.sub("^GIVEN UP", "given up", one_line(incident.evidence.get("restarts") or "", 100))


def evidence(incident: Incident) -> Iterator[tuple[str, str]]:
    """What is kept of it beside the numbers, title and text, of a length that can be read: how the process ended, its
    last lines, where its threads were."""
    kept = incident.evidence
    if isinstance(code := kept.get("exit"), int):
        seconds = as_float(kept.get("seconds"))
        after = f", after {span(seconds)}" if seconds >= 0 else ""
        yield "How the process ended", (f"exit code {code}" if code >= 0 else f"killed by signal {-code}") + after
    for stream in ("stderr", "stdout"):
        if lines := _texts(kept.get(stream)):
            yield f"Its last lines on {stream}", _last(lines)
    stacks = kept.get("stacks")
    found = list(stacks.items()) if isinstance(stacks, dict) else []
    for process, text in found[:_PROCESSES]:
        yield f"Stacks of {one_line(process, 60)}", _first(str(text).splitlines())
    if len(found) > _PROCESSES:
        yield "More stacks", f"of {len(found) - _PROCESSES} other processes"


def _last(lines: Sequence[str]) -> str:
    more = [f"… {len(lines) - _LINES} lines before these …"] if len(lines) > _LINES else []
    return "\n".join([*more, *map(_line, lines[-_LINES:])])


def _first(lines: Sequence[str]) -> str:
    most = 2 * _LINES
    more = [f"… {len(lines) - most} more lines …"] if len(lines) > most else []
    return "\n".join([*map(_line, lines[:most]), *more])


def _line(text: str) -> str:
    """Harmless, with its indentation."""
    indent = len(text[:_WIDTH]) - len(text[:_WIDTH].lstrip())
    return (" " * min(indent, 20) + one_line(text, _WIDTH)).rstrip()


def _texts(found: Any) -> list[str]:
    return [str(line) for line in found] if isinstance(found, list) else []


def _detection(incident: Incident) -> dict[str, Any]:
    found = incident.evidence.get("detection")
    return found if isinstance(found, dict) else {}
