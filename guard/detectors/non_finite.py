"""Non-finite: the loss or the gradient norm is NaN or infinite.

Why it matters: one such update poisons every weight; from there on the run only burns hours.
Fires when: loss or gradient norm is NaN or infinite. A GradScaler overflow with a finite or unknown loss is not: the
    scaler leaves that step out and halves its scale, which is its job.

Args: none.
Signals: loss, float, unscaled; grad_norm, float, L2 over all gradients, unscaled; overflow, bool.
Cost: O(1) per tick, no memory, no extra host sync.
Blind to: a NaN written by the update itself until it shows in the next tick; a corrupt but finite weight.
Raises: never at run time.
Example:
    {type: non_finite}
Source: the isfinite check every recipe has; here one subtraction each, because x - x is 0 only for finite x.
"""

from __future__ import annotations

import math

from guard.detectors._base import Detector, detector
from guard.types import Detection, Signals


@detector("non_finite")
class NonFinite(Detector):
    def score(self, s: Signals) -> Detection | None:
        loss, norm = s.loss, s.grad_norm
        if loss - loss == 0.0 and norm - norm == 0.0:
            return None
        if loss - loss != 0.0 and s.loss_known:
            return self._found("loss", loss, s, f"loss is {loss}")
        if norm - norm != 0.0 and not s.overflow:
            return self._found("grad_norm", norm, s, f"gradient norm is {norm} (loss {loss:.4g})")
        return None

    def _found(self, signal: str, value: float, s: Signals, message: str) -> Detection:
        return Detection("non_finite", signal, value, math.inf, math.nan, s.tick, message)
