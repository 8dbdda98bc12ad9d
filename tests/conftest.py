"""What holds for every test: nothing is announced in the user's own home, or written down in the state of this host."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def home_of_its_own() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        places = {"GUARD_HOME": f"{folder}/home", "GUARD_LOCAL_STATE": f"{folder}/state"}
        os.environ.update(places)
        yield
        for name in places:
            del os.environ[name]
