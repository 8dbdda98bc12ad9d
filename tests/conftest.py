"""What holds for every test: no guard announces itself to the user's own home."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def home_of_its_own() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as home:
        os.environ["GUARD_HOME"] = home
        yield
        del os.environ["GUARD_HOME"]
