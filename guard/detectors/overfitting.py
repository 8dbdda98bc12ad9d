"""Overfitting: the validation loss has turned and rises while the training loss goes on falling.

Why it matters: from the turn on every step makes the model worse; the weights worth keeping are behind.
Fires when: the last `patience` validation losses all lie above the best one by more than `rise` of it, 5 times their
    noise and 2 % of their fall so far, and the training loss is lower than it was at the best. Noise is the running
    mean of |v - 2 v' + v''| / 2 over some four evaluations, which a trend leaves alone. It stays on until an
    evaluation takes it back.

Args:
    metric: name of the validation loss, as given to `g.log`. Default val_loss.
    patience: evaluations in a row, >= 1. Default 3.
    rise: how far above the best [share of it], > 0. Default 0.15.
Signals: metrics, what `g.log` brought; loss, float, unscaled.
Cost: O(1) per tick, O(patience) memory, no extra host sync.
Blind to: overfitting that only an accuracy shows; runs that log no validation loss; the first evaluations.
Raises: PolicyError at load; never at run time.
Example:
    {type: overfitting, metric: val_loss, patience: 3}
Source: Prechelt 1998, early stopping by generalisation loss and by successive rises; the noise of the evaluations is
    added here.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.types import Detection, Signals


@detector("overfitting")
class Overfitting(Detector):
    class Params(Detector.Params):
        metric: str = "val_loss"
        patience: Annotated[int, Field(ge=1)] = 3
        rise: Annotated[float, Field(gt=0)] = 0.15

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self._first = self._best = math.nan  # validation losses
        self._best_at = 0  # tick of the best
        self._best_train = math.nan  # training loss before the best
        self._recent: list[float] = []  # at most `patience`
        self._noise = 0.0  # of the evaluations
        self._last = [math.nan, math.nan]  # the two before
        self._count = 0  # evaluations
        self._sum, self._ticks = 0.0, 0  # training loss since the last evaluation
        self._found: tuple[Any, ...] | None = None

    def score(self, s: Signals) -> Detection | None:
        if s.metrics is not None and self.params.metric in s.metrics:
            value = s.metrics[self.params.metric]
            found = self._judge(value, s.loss) if value - value == 0.0 else self._found
        else:
            found = self._found
        return None if found is None else Detection("overfitting", *found)

    def _judge(self, value: float, loss: float) -> tuple[Any, ...] | None:
        best, train, values = self._best, self._training(loss), [*self._recent, value]
        if len(values) < self.params.patience or not train < self._best_train:
            return None
        limit = best + max(self.params.rise * abs(best), 5.0 * self._noise, 0.02 * (self._first - best))
        values = values[-self.params.patience :]
        if not min(values) > limit:
            return None
        message = (
            f"{self.params.metric} is {values[-1]:.4g} after its best {best:.4g} at tick {self._best_at}, "
            f"while the training loss still fell from {self._best_train:.4g} to {train:.4g}"
        )
        return self.params.metric, values[-1], limit, best, self._best_at, message

    def learn(self, s: Signals) -> None:
        if s.metrics is not None and self.params.metric in s.metrics:
            self._evaluated(s, s.metrics[self.params.metric])
        elif not self._count:  # a run without validation pays nothing
            return
        loss = s.loss
        if loss - loss == 0.0:
            self._sum += loss
            self._ticks += 1

    hold = learn

    def _evaluated(self, s: Signals, value: float) -> None:
        if value - value != 0.0:
            return
        self._found = self._judge(value, s.loss)
        train = self._training(s.loss)
        if self._count > 1 and self._found is None:
            bend = 0.5 * abs(value - 2.0 * self._last[1] + self._last[0])  # free of the trend
            if self._count > 4 and value > self._best:  # the rise to be judged must not pass for noise
                bend = min(bend, 2.0 * self._noise)
            self._noise += (bend - self._noise) / min(self._count - 1, 4)
        self._last = [self._last[1], value]
        if not value >= self._best:
            self._best, self._best_at, self._best_train = value, s.tick, train
        if self._count == 0:
            self._first = value
        self._count += 1
        self._recent = [*self._recent, value][-self.params.patience :]
        self._sum, self._ticks = 0.0, 0

    def _training(self, loss: float) -> float:
        """Mean training loss since the last evaluation; where every tick is one, that of this tick."""
        return self._sum / self._ticks if self._ticks else loss

    def refill(self) -> None:
        self._recent, self._found = [], None

    def state_dict(self) -> dict[str, Any]:
        return {
            "first": self._first,
            "best": self._best,
            "best_at": self._best_at,
            "best_train": self._best_train,
            "recent": list(self._recent),
            "last": list(self._last),
            "noise": self._noise,
            "count": self._count,
            "sum": self._sum,
            "ticks": self._ticks,
            "found": None if self._found is None else list(self._found),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._first, self._best, self._best_at = state["first"], state["best"], state["best_at"]
        self._best_train, self._noise, self._count = state["best_train"], state["noise"], state["count"]
        self._recent, self._last = list(state["recent"]), list(state["last"])
        self._sum, self._ticks, found = state["sum"], state["ticks"], state["found"]
        self._found = None if found is None else tuple(found)
