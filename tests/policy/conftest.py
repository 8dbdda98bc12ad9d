"""Plug-ins that only these tests know, so that no message depends on what else is registered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import pytest
from pydantic import Field

from guard.actions import ACTIONS, Action
from guard.detectors import DETECTORS, Detector
from guard.registry import Params
from guard.units import Seconds, Steps


class Shaky(Detector):
    """Shaky signal: it moves more than it should."""

    class Params(Params):
        window: Annotated[Steps, Field(ge=1)] = 64
        threshold: Annotated[float, Field(gt=0)] = 4.0
        signal: str = "loss"

    def score(self, s):
        return None


class Nudge(Action):
    """Nudge: moves something a little."""

    class Params(Params):
        by: Annotated[float, Field(gt=0)] | Literal["auto"] = "auto"
        times: int = 1
        side: Literal["left", "right"] = "left"
        gently: bool = True
        wait: Seconds = 0.0
        labels: tuple[str, ...] = ()

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        if params.times == 13:
            raise ValueError("nobody nudges 13 times")

    def apply(self, run, detection):
        raise NotImplementedError

    def describe(self) -> str:
        return f"nudge it {self.params.side}"


@pytest.fixture(scope="module")
def plug_ins() -> Iterator[None]:
    """The detector `shaky` and the action `nudge`, known as long as this module's tests run."""
    with pytest.MonkeyPatch.context() as patch:
        for registry, name, cls in ((DETECTORS, "shaky", Shaky), (ACTIONS, "nudge", Nudge)):
            assert registry.get(name) is None  # also loads the built-in ones, before this one is put beside them
            patch.setattr(cls, "name", name, raising=False)
            patch.setitem(registry._found, name, cls)
        yield


@pytest.fixture(autouse=True)
def no_slack(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLACK_BOT_TOKEN", "SLACK_CHANNEL", "UNSET"):
        monkeypatch.delenv(name, raising=False)
