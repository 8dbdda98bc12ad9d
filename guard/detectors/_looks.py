"""What the detectors have in common that judge only the ticks on which the guard looked inside the model."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from guard.detectors._base import Detector
from guard.types import Detection, Signals
from guard.units import Steps

MOST = 8  # looks in a row that the guard counts for each unit


class Fault(NamedTuple):
    """What one look shows in one place.

    Args:
        key: the fault and the place; the same key in consecutive looks is the same fault.
        badness: how far out it is, to name the worst of several.
        signal, value, threshold, baseline, message: as in a `Detection`.
        patience: looks in a row that prove it; infinite: counted, but no proof yet.
    """

    key: str
    badness: float
    signal: str
    value: float
    threshold: float
    baseline: float
    message: str
    patience: float


class Looking(Detector):
    """Sees a fault when one key was among the `faults` of enough looks in a row."""

    class Params(Detector.Params):
        every: Annotated[Steps, Field(ge=1)] = 50
        looks: Annotated[int, Field(ge=1, le=MOST)] = 3

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._rows: dict[str, tuple[int, int]] = {}  # key -> looks in a row, tick of the first

    @classmethod
    def blind_after_refill(cls, params: Any) -> int:
        return int(params.every * params.looks + 1)

    @abstractmethod
    def faults(self, s: Signals) -> Sequence[Fault] | None:
        """What this look shows, or None if this tick is no look of this kind. Pure."""

    def looked_at(self, s: Signals) -> int:
        """The tick whose state this look shows."""
        return s.tick

    def remember(self, s: Signals) -> None:
        """Takes in what later looks are compared with."""

    def score(self, s: Signals) -> Detection | None:
        if s.deep is None:
            return None
        rows = self._rows
        proven = [f for f in self.faults(s) or () if rows.get(f.key, (0, 0))[0] + 1 >= f.patience]
        if not proven:
            return None
        worst = max(proven, key=lambda f: f.badness)
        since = min(rows.get(f.key, (0, self.looked_at(s)))[1] for f in proven)
        more = f" (and {len(proven) - 1} more)" if len(proven) > 1 else ""
        return Detection(
            self.name, worst.signal, worst.value, worst.threshold, worst.baseline, since, worst.message + more
        )

    def learn(self, s: Signals) -> None:
        if s.deep is None or (faults := self.faults(s)) is None:
            return
        rows, at = self._rows, self.looked_at(s)
        self._rows = {f.key: (n + 1, since) for f in faults for n, since in [rows.get(f.key, (0, at))]}
        self.remember(s)

    def hold(self, s: Signals) -> None:
        self.learn(s)

    def refill(self) -> None:
        self._rows = {}

    def state_dict(self) -> dict[str, Any]:
        return {"rows": {key: list(row) for key, row in self._rows.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows = {key: (row[0], row[1]) for key, row in state["rows"].items()}
