"""Signals: tensors in, floats out. The only place that reads gradients every step."""

from guard.signals.deep import Deep
from guard.signals.gradients import GradientReader, careful_norm, nonfinite_names
from guard.signals.guess import GuessMeter
from guard.signals.history import History, Row
from guard.signals.loss import LossMeter

__all__ = ["Deep", "GradientReader", "GuessMeter", "History", "LossMeter", "Row", "careful_norm", "nonfinite_names"]
