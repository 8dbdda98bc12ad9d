"""Requests from a person: one small file each in `control/`, taken by the guard at its next step."""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from guard.errors import UsageError

Verb = Literal["observe", "enforce", "undo", "rollback", "stop", "resume", "checkpoint"]
VERBS: tuple[str, ...] = get_args(Verb)
_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Request:
    """What a person asks of a running guard.

    Args:
        verb: observe, enforce (whole run, or one policy), undo (an incident's standing changes), rollback, stop,
            resume (a run that a policy paused), checkpoint.
        author: who asks.
        policy: for observe and enforce; None: the whole run.
        incident: for undo.
        to: for rollback: last_good, previous, start or best.
        run: the process that is meant, see `incarnation`; None: whichever takes it.
        expires: seconds since the epoch after which nobody wants it any more; None: never.
        refused: why it must not be done; found when it is taken.
    """

    verb: Verb
    author: str
    policy: str | None = None
    incident: str | None = None
    to: str = "last_good"
    run: str | None = None
    expires: float | None = None
    refused: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])


def submit(run_dir: Path, request: Request) -> Path:
    """Leaves a request for the guard that owns `run_dir`.

    Raises:
        UsageError: the directory cannot be written.
    """
    folder = run_dir / "control"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        temporary = folder / f".{request.id}.tmp"
        temporary.write_text(json.dumps({k: v for k, v in asdict(request).items() if k != "refused"}), encoding="utf-8")
        target = folder / f"{request.id}.json"
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"cannot leave a request in {folder}: {error.strerror}") from error
    return target


def incarnation(run_dir: Path) -> str | None:
    """Names the process that owns the directory now, so that a request is not obeyed by the one after it."""
    try:
        owner = json.loads((run_dir / "owner.json").read_text("utf-8"))
        return f"{owner['boot']}/{owner['pid']}/{owner['started']}"
    except (OSError, ValueError, TypeError, KeyError):
        return None


def take(run_dir: Path, now: float) -> list[Request | str]:
    """Takes all requests, oldest first; a malformed one is returned as a sentence that says what is wrong.

    Args:
        now: seconds since the epoch.
    """
    folder = run_dir / "control"
    try:
        with os.scandir(folder) as entries:
            files = sorted(
                (e for e in entries if e.name.endswith(".json") and e.is_file(follow_symlinks=False)),
                key=lambda e: (e.stat().st_mtime_ns, e.name),
            )
    except OSError:
        return []
    taken: list[Request | str] = []
    for file in files:
        try:
            with Path(file.path).open("rb") as opened:
                text, owner = opened.read(_MAX_BYTES), os.fstat(opened.fileno()).st_uid
            Path(file.path).unlink()
            request = _parse(json.loads(text))
            taken.append(replace(request, refused=_refusal(request, owner, now, run_dir)))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            taken.append(f"request {file.name[:80]!r} is not understood: {error}"[:300])
    return taken


def _parse(raw: dict[str, Any]) -> Request:
    if not isinstance(raw, dict) or raw.get("verb") not in VERBS:
        raise ValueError(f"the verb must be one of {', '.join(VERBS)}")
    expires = raw.pop("expires", None)
    if not all(v is None or isinstance(v, str) for v in raw.values()):
        raise ValueError("all values must be text")
    if expires is not None and not isinstance(expires, (int, float)):
        raise ValueError("'expires' must be a number")
    return Request(**raw, expires=expires)


def _refusal(request: Request, owner: int, now: float, run_dir: Path) -> str:
    """Why a request must not be done, or ""."""
    if owner not in (os.getuid(), 0):
        return f"it was left by another user (uid {owner})"
    if request.expires is not None and now > request.expires:
        return f"it expired {now - request.expires:.0f} s ago"
    if request.run is not None and request.run != incarnation(run_dir):
        return "it was meant for an earlier process of this run"
    return ""
