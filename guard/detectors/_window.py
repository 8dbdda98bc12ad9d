"""What the detectors have in common that judge a stretch of ticks rather than one.

A window is 8 blocks; a block closes every window / 8 ticks, and then the window is judged. What a tick costs therefore
does not depend on the window: it is an append, and its share of a few sums over its own block.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from operator import mul
from typing import Any, ClassVar, NamedTuple

from guard.detectors._base import Detector
from guard.detectors._stats import median
from guard.types import Detection, Signals

BLOCKS = 8
HALF = BLOCKS // 2
FIRST = 5  # losses that say where it starts

# What is found: the fields of a `Detection` after its name.
Found = tuple[str, float, float, float, int, str]


class Block(NamedTuple):
    """What is kept of window / 8 ticks.

    Args:
        since, until: first and last tick.
        mean, var: of the loss.
        norm: mean gradient norm.
        rough: how restless the gradient norm was, in the detector's own measure.
        lr: effective learning rate at its end.
    """

    since: int
    until: int
    mean: float
    var: float
    norm: float
    rough: float
    lr: float


class Step(NamedTuple):
    """One step of the loss up to another level.

    Args:
        since, until: first and last tick of the block in which it happened.
        restless: deviation / level after it, over the same before it.
    """

    since: int
    until: int
    restless: float


def step_up(blocks: Sequence[Block]) -> Step | None:
    """The step, if a full window is two levels with one step up between them; what follows may be falling again."""
    means = [b.mean for b in blocks]
    i = max(range(1, BLOCKS - 2), key=lambda i: means[i + 1] - means[i - 1])
    below, above = blocks[:i], blocks[i + 1 :]
    was, now = sum(means[:i]) / i, sum(means[i + 1 :]) / len(above)
    if means[i + 1] - means[i - 1] < 0.7 * (now - was) or now <= was or was <= 0.0:
        return None
    before, after = (median([math.sqrt(b.var) / b.mean for b in part]) for part in (below, above))
    return Step(blocks[i].since, blocks[i].until, after / before if before > 0.0 else math.inf)


class Windowed(Detector):
    """Feeds blocks to `judge`; what it finds is reported until it finds nothing any more.

    Args:
        params: with a `window` [steps].
    """

    of_curve = True
    OWN: ClassVar[tuple[str, ...]] = ()  # further attributes that change over time; plain values or tuples

    def __init__(self, params: Any) -> None:
        super().__init__(params)
        self.size: int = max(2, params.window // BLOCKS)  # ticks a block
        self.losses: list[float] = []
        self.norms: list[float] = []  # stays empty in those that do not look at gradients
        self.blocks: list[Block] = []  # at most BLOCKS
        self.first: tuple[float, ...] = ()  # losses, for those that ask
        self.start = math.nan  # level of the loss at the start
        self.opened = -1  # first tick of the block being filled; -1: not known yet
        self.found: Found | None = None

    @classmethod
    def blind_after_refill(cls, params: Any) -> int:
        return int(params.window)

    def first_ticks(self, s: Signals) -> None:
        """Where the loss starts, from a few losses: a high rate may throw it up at once, so the lower says it."""
        if s.loss - s.loss == 0.0:
            self.first = (*self.first, s.loss)
            self.start = min(self.first[0], median(self.first))

    @abstractmethod
    def judge(self) -> Found | None:
        """What the full window shows."""

    def closed(self, block: Block) -> None:
        """`block` is done and the last of `blocks`, of which there may be one too many: the first one leaves now."""

    def rough(self, norms: list[float], mean: float) -> float:  # noqa: ARG002 - for those that want it
        """Restlessness of a block's gradient norms, at least one."""
        return 0.0

    def score(self, s: Signals) -> Detection | None:  # noqa: ARG002 - the window is judged, not the tick
        return None if self.found is None else Detection(self.name, *self.found)

    def learn(self, s: Signals) -> None:
        losses = self.losses
        losses.append(s.loss)
        self.norms.append(s.grad_norm)
        if len(losses) >= self.size:
            self.close(s)

    def hold(self, s: Signals) -> None:  # a window is what is judged, no baseline: it takes in flagged ticks too
        self.learn(s)

    def close(self, s: Signals) -> None:
        """Turns the ticks gathered into a block, and judges."""
        losses, norms, tick = self.losses, self.norms, s.tick
        since = self.opened if self.opened >= 0 else tick - len(losses) + 1
        self.losses, self.norms, self.opened = [], [], tick + 1
        total, norm = sum(losses), sum(norms)
        if total - total != 0.0:
            losses = [x for x in losses if x - x == 0.0]
            total = sum(losses)
        if norm - norm != 0.0:
            norms = [x for x in norms if x - x == 0.0]
            norm = sum(norms)
        n = len(losses)
        if 2 * n < self.size:  # too few losses are known
            return
        mean, norm = total / n, norm / (len(norms) or 1)
        var = sum(map(mul, losses, losses)) / n - mean * mean
        if var - var != 0.0 or norm - norm != 0.0:  # beyond what a float holds
            return
        rough = self.rough(norms, norm) if norms else 0.0
        block = Block(since, tick, mean, var if var > 0.0 else 0.0, norm, rough, s.lr_effective)
        self.blocks.append(block)
        self.closed(block)
        blocks = self.blocks
        if len(blocks) > BLOCKS:
            blocks.pop(0)
        if len(blocks) == BLOCKS:
            self.found = self.judge()

    def refill(self) -> None:
        self.losses, self.norms, self.blocks = [], [], []
        self.opened, self.found = -1, None

    def state_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.OWN}
        return {
            **own,
            "losses": list(self.losses),
            "norms": list(self.norms),
            "blocks": [list(b) for b in self.blocks],
            "first": list(self.first),
            "start": self.start,
            "opened": self.opened,
            "found": None if self.found is None else list(self.found),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.OWN:
            setattr(self, name, state[name])
        self.first, self.start = tuple(state["first"]), state["start"]
        self.losses, self.norms = list(state["losses"]), list(state["norms"])
        self.blocks = [Block(*b) for b in state["blocks"]]
        self.opened, found = state["opened"], state["found"]
        self.found = None if found is None else (found[0], found[1], found[2], found[3], found[4], found[5])
