"""What `dead_activations` and `saturated_activations` have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from guard.detectors._base import Detector
from guard.detectors._looks import MOST, Fault, Looking
from guard.types import Detection, Signals
from guard.units import Share


class IdleUnits(Detector):
    """Units that passed nothing on in any of several looks. The guard counts the looks of each unit."""

    needs = frozenset({"activations"})
    KIND: ClassVar[str]  # key of the shares in an entry of `deep["activations"]`
    WHAT: ClassVar[str]

    class Params(Looking.Params):
        share: Annotated[Share, Field(gt=0)] = 0.5
        values: Annotated[int, Field(ge=1)] = 64

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._ticks: list[int] = []  # of the last looks, at most MOST

    @classmethod
    def blind_after_refill(cls, params: Any) -> int:
        return int(params.every * params.looks + 1)

    def score(self, s: Signals) -> Detection | None:
        if s.deep is None or "activations" not in s.deep:
            return None
        ticks = [*self._ticks, s.tick]
        found = [f for name, entry in s.deep["activations"].items() if (f := self._idle(name, entry, len(ticks)))]
        if not found:
            return None
        worst = max(found, key=lambda f: f.badness)
        since = min(ticks[-int(f.patience)] for f in found)
        more = f" (and {len(found) - 1} more layers)" if len(found) > 1 else ""
        return Detection(
            self.name, worst.signal, worst.value, worst.threshold, worst.baseline, since, worst.message + more
        )

    def _idle(self, name: str, entry: dict[str, Any], seen: int) -> Fault | None:
        shares: Sequence[float] | None = entry.get(self.KIND)
        if not shares:
            return None
        p = self.params
        looks = max(p.looks, math.ceil(p.values / max(1, entry["values"])))
        if looks > min(seen, MOST) or not shares[looks - 1] > p.share:
            return None
        share = shares[looks - 1]
        message = f"{share:.0%} of the {entry['units']} units of {name} {self.WHAT} in {looks} looks in a row"
        return Fault(name, share, self.KIND, share, p.share, math.nan, message, looks)

    def learn(self, s: Signals) -> None:
        if s.deep is not None and "activations" in s.deep:
            self._ticks = [*self._ticks, s.tick][-MOST:]

    def hold(self, s: Signals) -> None:
        self.learn(s)

    def refill(self) -> None:
        self._ticks = []

    def state_dict(self) -> dict[str, Any]:
        return {"ticks": list(self._ticks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ticks = list(state["ticks"])
