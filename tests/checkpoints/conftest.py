"""One thread; a disk that need not really be waited for; stores that are closed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints.small import open_store

from guard.checkpoints import DiskStore

Open = Callable[..., DiskStore]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """That everything is brought to the disk has a test of its own."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


@pytest.fixture
def store(place: Path) -> Iterator[Open]:
    """Opens stores in `place`, and closes them."""
    opened: list[DiskStore] = []

    def open_(**how: Any) -> DiskStore:
        opened.append(open_store(how.pop("folder", place), **how))
        return opened[-1]

    yield open_
    for one in opened:
        assert one.close(30)
