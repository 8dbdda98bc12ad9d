"""Saturated activations: units that stay at the flat ends of a sigmoid, tanh or hard function for every sample.

Why it matters: at the flat ends the slope is almost zero, so nothing that comes before such a unit is trained any more.
Fires when: in some layer more than `share` of the units were, for every sample of `looks` looks in a row, where the
    slope is below 1 % of its largest; of more looks where a batch is so small that `values` numbers need them.

Args:
    every: ticks between two looks [steps], >= 1. Default 50.
    looks: in a row [looks], 1 to 8. Default 3.
    share: of a layer's units, 0 < share <= 1. Default 0.5.
    values: numbers that must have been seen of a unit before its place means anything, >= 1. Default 64.
Signals: deep.activations, shares of units by layer; from Sigmoid, Tanh, Softsign, Hardtanh, ReLU6, Hardsigmoid, RNN.
Cost: nothing between looks; a look reads each activation once, and all its results in one transfer.
Blind to: functions (`torch.tanh`), the gates inside LSTM and GRU, softmax, compiled graphs; the model's own output,
    which has a right to be certain; batches that show fewer than `values` / 8 numbers of a unit.
Raises: PolicyError at load; never at run time.
Example:
    {type: saturated_activations, every: 50 steps, share: 0.5}
Source: Glorot & Bengio 2010 watch saturated units; the SaturatedActivation rule of SageMaker Debugger has the same half
    of a layer. There a fixed pre-activation is the limit, here the slope that is left.
"""

from __future__ import annotations

from guard.detectors._base import detector
from guard.detectors._units import IdleUnits


@detector("saturated_activations")
class SaturatedActivations(IdleUnits):
    KIND = "saturated"
    WHAT = "were at a flat end for every sample"
