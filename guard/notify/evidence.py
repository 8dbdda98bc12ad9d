"""The evidence folder of an incident: picture and report, made in a process of its own.

matplotlib holds the interpreter lock for a second, which training would feel, and is not safe beside a script's own use
of it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from guard.incidents import IncidentLog, plot, read_story
from guard.notify import from_outside, render, why
from guard.notify.render import TRIED
from guard.types import Incident

_TIMEOUT = 60.0  # [s]


def make_in_subprocess(run_dir: Path, incident: str) -> Path | None:
    """Makes ``evidence/<incident>/plot.png`` and ``report.md``; the picture's path, or None if it could not be
    drawn.
    """
    target = run_dir / "evidence" / incident / "plot.png"
    try:
        subprocess.run(
            [sys.executable, "-m", "guard.notify.evidence", str(run_dir), incident],
            timeout=_TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return target if target.exists() else None


def make(run_dir: Path, incident_id: str) -> None:
    """Makes both here and now.

    Raises:
        KeyError: neither the journal nor those outside know such an incident.
    """
    picture = plot.render(run_dir, incident_id)
    log = IncidentLog(read_story(run_dir))
    (picture.parent / "report.md").write_text(report(log, incident_id), encoding="utf-8")


def report(log: IncidentLog, incident_id: str) -> str:
    """The incident as a Markdown page; what it quotes stays a quotation."""
    incident = log.incidents[incident_id]
    message = render.root(log, incident)
    parts = [f"# {_plain(message.first_line)}", _plain(message.headline)]
    rows = (f"| {label} | {_plain(value)} |" for label, value in message.fields)
    parts.append("\n".join(["| | |", "|---|---|", *rows]))
    for title, body in message.sections:
        parts.append(f"## {title}\n\n{_experiments(incident) if title == TRIED else _plain(body)}")
    parts += [f"## {title}\n\n{_fenced(body)}" for title, body in from_outside.evidence(incident)]
    parts += ["![loss and gradient norm](plot.png)", _fenced(message.command)]
    return "\n\n".join(parts) + "\n"


def _experiments(incident: Incident) -> str:
    """The table of a diagnosis, and what was looked at before the first tensor that is not finite."""
    rows = "\n".join(f"| {' | '.join(map(_plain, row))} |" for row in why.experiments(incident))
    table = f"| the failing step | outcome | numbers |\n|---|---|---|\n{rows}"
    seen = "\n".join(f"- {_plain(line)}" for line in why.before(incident))
    return f"{table}\n\nLooked at before it, and in order:\n\n{seen}" if seen else table


def _plain(text: str) -> str:
    """Nothing in it is a link, a tag, a cell's end or code."""
    return re.sub(r"([\\`<>\[\]|*_])", r"\\\1", text)


def _fenced(text: str) -> str:
    """Behind a fence that nothing in it ends."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


if __name__ == "__main__":
    os.nice(10)  # the training beside it comes first
    make(Path(sys.argv[1]), sys.argv[2])
