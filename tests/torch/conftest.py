"""What all tests of this folder share: one thread, helpers that can be imported, no Slack, nothing left patched."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# This folder cannot be imported by its name, which is torch's.
sys.path.insert(0, str(Path(__file__).parent))

_REAL_BACKWARD = torch.autograd.backward


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is durable has tests of its own; here hundreds of runs would wait for the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(autouse=True)
def _no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_BOT_TOKEN", "SLACK_CHANNEL", "GUARD_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _nothing_left_patched() -> Iterator[None]:
    yield
    assert torch.autograd.backward is _REAL_BACKWARD, "a guard was not detached"
