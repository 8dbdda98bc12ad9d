"""Where in a run's ``policy.yaml`` a policy stands."""

from __future__ import annotations

from pathlib import Path


def policy_line(run_dir: Path, name: str) -> int | None:
    """Line of the policy called `name`, from 1; None if it is not in the file, or the file cannot be read."""
    from guard.errors import PolicyError
    from guard.policy.files import Unreadable, read
    from guard.policy.yaml_reader import read_yaml

    path = run_dir / "policy.yaml"
    try:
        root = read_yaml(read(path), path)
        entries = root.value["policies"].value
        return next(int(entry.place.line) for entry in entries if entry.value["name"].value == name)
    except (PolicyError, Unreadable, KeyError, TypeError, AttributeError, StopIteration):
        return None
