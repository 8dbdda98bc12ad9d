"""Signals: tensors in, floats out. The only place that reads gradients every step."""

from guard.signals.gradients import GradientReader, careful_norm, nonfinite_names
from guard.signals.loss import LossMeter

__all__ = ["GradientReader", "LossMeter", "careful_norm", "nonfinite_names"]
