"""`guard plugins`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from guard.cli._plugins import load_all
from guard.cli._runs import AsJson
from guard.cli._say import PROBLEMS, out, out_json, out_table

if TYPE_CHECKING:
    from guard.registry import Registry

EXAMPLES = ("guard plugins",)


def command(as_json: AsJson = False) -> None:
    """List the detectors and actions a policy can name."""
    from guard.actions import ACTIONS
    from guard.detectors import DETECTORS

    broken = load_all()
    found = {f"{registry.kind}s": _described(registry) for registry in (DETECTORS, ACTIONS)}
    if as_json:
        out_json(found)
    else:
        out_table(("Detector", "Fires when", "Origin"), found["detectors"])
        out()
        out_table(("Action", "What it does", "Origin"), found["actions"])
    raise typer.Exit(PROBLEMS if broken else 0)


def _described(registry: Registry[Any]) -> list[tuple[str, str, str]]:
    return [(name, _line(registry.page(name)), _origin(registry, name)) for name in registry]


def _line(page: str) -> str:
    """The explanation in the first line of its page, ``Name: explanation.``"""
    line = page.partition("\n")[0]
    return (line.partition(": ")[2] or line).rstrip(".")


def _origin(registry: Registry[Any], name: str) -> str:
    origin = registry.origin(name)
    return "built in" if origin.startswith(f"{registry.package}.") else origin
