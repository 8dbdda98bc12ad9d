"""Training guard: protects long, unattended PyTorch runs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from guard import doctor as doctor
    from guard.actions import Action, action
    from guard.attaching import attach
    from guard.detectors import Detector, detector
    from guard.errors import GuardError, PolicyError, RunDirError, TrainingStopped, UsageError
    from guard.guard import Guard
    from guard.policy import PolicySet
    from guard.types import Detection, Incident, Result, Signals

__version__ = "0.1.0"

_HOMES = {
    "attach": "guard.attaching",
    "Guard": "guard.guard",
    "PolicySet": "guard.policy",
    "Detector": "guard.detectors",
    "detector": "guard.detectors",
    "Action": "guard.actions",
    "action": "guard.actions",
    "Detection": "guard.types",
    "Incident": "guard.types",
    "Result": "guard.types",
    "Signals": "guard.types",
    "GuardError": "guard.errors",
    "PolicyError": "guard.errors",
    "RunDirError": "guard.errors",
    "TrainingStopped": "guard.errors",
    "UsageError": "guard.errors",
}
_ROOMS = ("doctor",)  # used as `guard.doctor.examine`

__all__ = [
    "Action",
    "Detection",
    "Detector",
    "Guard",
    "GuardError",
    "Incident",
    "PolicyError",
    "PolicySet",
    "Result",
    "RunDirError",
    "Signals",
    "TrainingStopped",
    "UsageError",
    "__version__",
    "action",
    "attach",
    "detector",
    "doctor",
]


def __getattr__(name: str) -> Any:
    """Loads a public name when it is first used, so that `import guard` is quick and needs no torch."""
    if name in _ROOMS:
        return importlib.import_module(f"guard.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'guard' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
