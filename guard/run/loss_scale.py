"""The GradScaler's search for a loss scale, within limits that an action has set."""

from __future__ import annotations

from typing import Any


class LossScale:
    """Standing changes to a `torch.amp.GradScaler`; they outlive a rollback, which restores the scaler itself.

    Args:
        scaler: the run's, or None.
    """

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler
        self._value: float | None = None
        self._growth_interval: int | None = None
        self._floor: float | None = None
        self._growth_before: int | None = None

    def change(self, value: float | None, growth_interval: int | None, floor: float | None) -> dict[str, Any]:
        """From the next iteration on. Returns what changed, as ``name: [before, after]``."""
        changes: dict[str, Any] = {}
        if value is not None:
            changes["loss_scale"] = [float(self._scaler.get_scale()), value]
            self._value = value
        if growth_interval is not None:
            before = self._scaler.get_growth_interval()
            changes["growth_interval"] = [before, growth_interval]
            self._growth_before = before if self._growth_before is None else self._growth_before
            self._growth_interval = growth_interval
        if floor is not None:
            changes["floor"] = [self._floor, floor]
            self._floor = floor
        return changes

    def settle(self) -> None:
        """Makes it so: after the loop's `scaler.update`, and after the scaler was restored."""
        if self._growth_interval is not None:
            self._scaler.set_growth_interval(self._growth_interval)
            if self._scaler._growth_tracker is not None:  # it grows at equality only: a count beyond never does
                self._scaler._growth_tracker.clamp_(max=self._growth_interval - 1)
        if self._value is None and self._floor is None:
            return
        value, self._value = self._value, None
        scale = self._scaler._scale
        if scale is None:  # not used yet
            self._scaler._init_scale = max(value or self._scaler._init_scale, self._floor or 0.0)
            return
        if value is not None:
            scale.fill_(value)
            self._scaler._growth_tracker.zero_()
        if self._floor is not None:
            scale.clamp_(min=self._floor)

    def standing(self) -> list[Any]:
        """What is in force, as plain values."""
        return [self._growth_interval, self._floor, self._growth_before]

    def stand(self, plain: list[Any]) -> None:
        """Puts in force what `standing` said."""
        self._growth_interval, self._floor, self._growth_before = plain
        self.settle()

    def undo(self) -> None:
        """Floor and growth interval as before; the scale is the scaler's own affair again."""
        if self._growth_before is not None:
            self._scaler.set_growth_interval(self._growth_before)
        self._value = self._growth_interval = self._growth_before = self._floor = None
