"""Where policies are read from."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from guard.policy.messages import nearest


class Unreadable(Exception):  # noqa: N818 - becomes a Problem, at a place that only the caller knows
    """There is no such policy, or it is not text. Says why."""


def is_path(source: str) -> bool:
    """Otherwise it names a shipped policy."""
    return "/" in source or os.sep in source or source.endswith((".yaml", ".yml"))


def shipped() -> dict[str, Path]:
    """The policies that come with the guard: inside the package in a wheel, beside it in a checkout."""
    folder = Path(str(resources.files("guard") / "_policies"))
    if not folder.is_dir():
        folder = Path(__file__).resolve().parents[2] / "policies"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find(source: str, beside: Path | None = None) -> Path:
    """The file of a shipped policy's name, or of a path relative to the folder of the file `beside`.

    Raises:
        Unreadable: no shipped policy has that name; lists them.
    """
    if is_path(source):
        return (beside.parent if beside else Path()) / os.path.expanduser(source)  # noqa: PTH111 - as in build._path
    known = shipped()
    if source not in known:
        raise Unreadable(
            f"no shipped policy is called {source!r}{nearest(source, known) or ';'} "
            f"shipped: {', '.join(known)}; a file is written with its ending, as in './{source}.yaml'"
        )
    return known[source]


def read(path: Path) -> str:
    """A file's text.

    Raises:
        Unreadable: it is missing, a folder, not permitted, binary or not UTF-8.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise Unreadable("there is no such file") from None
    except IsADirectoryError:
        raise Unreadable("this is a folder; a policy is one YAML file") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise Unreadable(f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if b"\0" in data:
        raise Unreadable("this is a binary file; a policy is YAML text in UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(
            f"this file is not UTF-8: line {line} holds the byte 0x{data[error.start]:02x}; save it as UTF-8"
        ) from None
