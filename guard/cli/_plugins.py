"""Plug-ins of other packages may fail to load; that is said, and the others go on."""

from __future__ import annotations

from guard.cli._say import note


def load_all() -> bool:
    """Loads every detector and action; True if one of them cannot be used."""
    from guard.actions import ACTIONS
    from guard.detectors import DETECTORS

    failed = False
    for registry in (DETECTORS, ACTIONS):
        list(registry)  # loads them
        for name, why in registry.failed.items():
            failed = True
            note(f"the {registry.kind} {name!r} cannot be loaded: {why}")
    return failed
