"""Oscillation: the loss swings, has lost ground, and does not win it back.

Why it matters: the rate is too high (or gradients add up because nobody clears them); every further tick is wasted,
    and a lower rate usually mends it at once.
Fires when: over the second half of the window the loss stays above the best quarter window of late by `rise`, by 5
    standard errors and by 2 % of its start level, does not fall, and its detrended deviation is more than 0.1 of its
    mean; the oscillation is severe if it is more than 0.5 of that best and the loss is twice that, else moderate.
    Where the rate was raised since that best, `rise` counts three times; where it was not, one step to another level
    below the start, on which the loss swings no more than before in proportion, is none: the data have changed, and
    the level counts anew.
    Or: deviation above 0.3 of the mean, no progress over the window, and a gradient norm that climbs while it hardly
    changes from one tick to the next, as the sum of all gradients so far does.

Args:
    window: ticks judged at once [steps], >= 48. Default 96.
    rise: how far above the best quarter window [share of that], > 0. Default 0.6.
    grade: the least grade that counts, moderate or severe. Default moderate.
    of: what is looked for: ``loss``, the first; ``gradients``, the second; ``either``. Default either.
Signals: loss, float, unscaled; grad_norm, float, L2 over all gradients, unscaled; lr_effective.
Cost: O(1) per tick (8 blocks, one judged every window / 8 ticks), O(window / 8) memory, no extra host sync.
Blind to: noise around a level that was never bettered; losses that are not positive; swings slower than the window; a
    level reached so slowly that it is the usual one by now.
Raises: PolicyError at load; never at run time.
Example:
    {type: oscillation, window: 100 steps}
Source: the std / mean grades of common loss-curve linters (0.1, 0.5). That ratio alone calls every small batch an
    oscillation, so here it only grades; the verdict is lost ground.
"""

from __future__ import annotations

import math
from operator import sub
from typing import Annotated, Any, Literal

from pydantic import Field

from guard.detectors._base import Detector, detector
from guard.detectors._stats import line
from guard.detectors._window import BLOCKS, HALF, Block, Found, Windowed, step_up
from guard.units import Steps

_SWINGS, _SEVERE = 0.1, 0.5  # detrended deviation / mean, / best
_LOST = 2.0  # times the best: from there on it is severe
_FLOOR = 0.02  # of the start level: swings below are the noise floor of a finished run
_FORGETS = 0.1  # of the distance to the best, per block
_SAME = 2.0  # times as restless as before, in proportion
_ERRORS = 5.0  # standard errors above the best quarter


@detector("oscillation")
class Oscillation(Windowed):
    OWN = ("best", "best_lr", "shifted")

    class Params(Detector.Params):
        window: Annotated[Steps, Field(ge=48)] = 96
        rise: Annotated[float, Field(gt=0)] = 0.6
        grade: Literal["moderate", "severe"] = "moderate"
        of: Literal["loss", "gradients", "either"] = "either"

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.best = math.inf  # least mean of two blocks that have left the window
        self.best_lr = 0.0
        self.shifted = -1  # first tick after the loss stepped to another level

    def closed(self, block: Block) -> None:
        if self.start != self.start:
            self.start = block.mean
        if len(self.blocks) > BLOCKS:
            a, b = self.blocks[:2]
            if a.since < self.shifted:
                return
            if a.mean + b.mean < 2.0 * self.best:
                self.best, self.best_lr = 0.5 * (a.mean + b.mean), max(a.lr, b.lr)
            else:  # ground is lost within some windows; a slow drift (a game that gets harder) is none
                self.best += _FORGETS * (0.5 * (a.mean + b.mean) - self.best)

    def rough(self, norms: list[float], mean: float) -> float:  # noqa: ARG002 - the mean step between ticks
        steps: float = sum(map(abs, map(sub, norms[1:], norms)))
        return steps / len(norms)

    def judge(self) -> Found | None:
        b = self.blocks
        if b[0].since < self.shifted:
            return None
        first, last = 0.5 * (b[0].mean + b[1].mean), 0.5 * (b[6].mean + b[7].mean)  # quarters of the window
        best, lr = (self.best, self.best_lr) if self.best < first else (first, b[1].lr)
        if best <= 0.0 or last - best < _FLOOR * self.start:
            return None
        third = 0.5 * (b[4].mean + b[5].mean)
        if last < 0.5 * first and first > third > last:  # a new level is being learnt: the old best is past
            self.best = math.inf
            return None
        found = None
        if self.params.of != "gradients" and min(third, last) > best * (1.0 + self.params.rise):
            found = self._lost_ground(best, lr, min(third, last))
        if found is None and self.params.of != "loss" and b[7].norm > 1.05 * b[0].norm > 0.0:
            found = self._gathers(best, first)
        return found

    def _lost_ground(self, best: float, lr: float, least: float) -> Found | None:
        blocks, rise = self.blocks, self.params.rise
        raised = max(b.lr for b in blocks) > 1.2 * lr > 0.0
        if raised:
            rise *= 3.0
            if least < best * (1.0 + rise):
                return None
        half = [b.mean for b in blocks[-HALF:]]
        if half[3] < half[2] and half[3] < 0.7 * max(half):  # it was one jump, and is being learnt away
            return None
        _, level, sd, fall = _shape(blocks)
        error = sd * math.sqrt(6.0 / (BLOCKS * self.size))  # of a half minus a quarter
        if fall < -sd or level - best < _ERRORS * error:
            return None
        sd = _shape(blocks[HALF:])[2]  # a step up to another steady level is no swing
        if sd < _SWINGS * level:
            return None
        step = None if raised else step_up(blocks)
        if step is not None and step.restless < _SAME and level < self.start:
            self.shifted, self.best = step.until + 1, math.inf
            return None
        grade = "severe" if sd > _SEVERE * best and level > _LOST * best else "moderate"
        if grade == "moderate" and self.params.grade == "severe":
            return None
        message = f"{grade} oscillation: loss swings by {sd / level:.0%} around {level:.3g}, its best was {best:.3g}"
        return "loss", level, best * (1.0 + rise), best, blocks[0].since, message

    def _gathers(self, best: float, first: float) -> Found | None:
        blocks = self.blocks
        if not all(b.rough < 0.05 * b.norm for b in blocks):
            return None
        mean, level, sd, fall = _shape(blocks)
        if sd < 3.0 * _SWINGS * mean or fall < -sd or level < 0.9 * first:
            return None
        message = (
            f"loss swings by {sd / mean:.0%} around {level:.3g} while the gradient norm climbs smoothly from "
            f"{blocks[0].norm:.3g} to {blocks[-1].norm:.3g}: are gradients cleared between steps?"
        )
        return "loss", level, 0.9 * first, best, blocks[0].since, message


def _shape(blocks: list[Block]) -> tuple[float, float, float, float]:
    """Mean of some blocks, of their second half, detrended deviation, and what the trend adds over them."""
    n = len(blocks)
    means = [b.mean for b in blocks]
    mean, slope = sum(means) / n, line(means)[0]
    between = sum((m - mean - slope * (i - (n - 1) / 2)) ** 2 for i, m in enumerate(means))
    sd = math.sqrt((sum(b.var for b in blocks) + between) / n)
    return mean, sum(means[n // 2 :]) / (n - n // 2), sd, slope * n
