"""What a detector is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from guard.registry import Params as BaseParams
from guard.registry import Registry
from guard.types import Detection, Signals


class Detector(ABC):
    """One fault. Reads signals, never tensors; never raises at run time.

    A tick goes: `score` (pure, on every detector), then, once the step was accepted, `learn` on those that saw
    nothing or `hold` on those that did. A tick whose step was left out or undone is seen by neither.

    Args:
        params: validated parameters, an instance of the class's own `Params`.
    """

    name: ClassVar[str]
    of_curve: ClassVar[bool] = False  # judges the shape of the loss curve, which means nothing in an adversarial game
    # Parts of `Signals.deep` that it reads; its `every` says how often. They are measured only if some detector asks.
    needs: ClassVar[frozenset[str]] = frozenset()

    class Params(BaseParams):
        """What YAML may set."""

    def __init__(self, params: Any) -> None:
        self.params = params

    @classmethod
    def blind_after_refill(cls, params: Any) -> int:  # noqa: ARG003 - for those that need a full window
        """Ticks after `refill` in which it cannot fire: until then its silence says nothing about a remedy."""
        return 0

    @property
    def settled(self) -> bool:
        """Nothing can come that it would tell or learn: it is left alone until a state is loaded. Optional."""
        return False

    @abstractmethod
    def score(self, s: Signals) -> Detection | None:
        """The fault, if this tick shows it. Pure: changes nothing, so that it may be asked twice."""

    def learn(self, s: Signals) -> None:  # noqa: B027 - optional
        """Takes an accepted, unflagged tick into the baseline."""

    def hold(self, s: Signals) -> None:  # noqa: B027 - optional
        """An accepted tick that this detector flagged: not learnt, but counted, so that a lasting level shift
        re-baselines."""

    def refill(self) -> None:  # noqa: B027 - optional
        """After a remedy: windows start anew, long-run knowledge (such as the best loss) stays."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of all that changes over time; plain values and lists."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - optional
        """Takes back what `state_dict` gave. Must not alias it: the same state is loaded more than once."""


DETECTORS: Registry[Detector] = Registry("detector", "guard.detectors", "guard.detectors")
detector = DETECTORS.register
