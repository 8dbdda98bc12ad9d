"""Plug-ins of other packages may fail to load; that is said, and the others go on."""

from __future__ import annotations

from guard.cli._say import note


def load_all() -> bool:
    """Loads every detector and action; True if one of them could not be loaded."""
    from guard.actions import ACTIONS
    from guard.detectors import DETECTORS

    failed = False
    for registry in (DETECTORS, ACTIONS):
        try:
            list(registry)
        except Exception as error:  # noqa: BLE001 - whatever somebody else's module raises
            failed = True
            note(f"a plug-in of the group {registry.group} cannot be loaded: {type(error).__name__}: {error}")
    return failed
