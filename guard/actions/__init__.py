"""Actions: what may be done to a run. One per file; the file name is its `type` in YAML."""

from guard.actions._base import ACTIONS, OTHER, STRENGTH, Action, Run, action

__all__ = ["ACTIONS", "OTHER", "STRENGTH", "Action", "Run", "action"]
