"""Dead activations: units that put out zero for every sample, so that no gradient passes through them.

Why it matters: one step too long pushes the inputs of a ReLU below zero for good; the layer keeps its size on paper and
    loses it in fact, and the loss settles too high.
Fires when: in some layer more than `share` of the units were zero for every sample of `looks` looks in a row; of more
    looks where a batch is so small that `values` numbers of a unit need them, of at most 8.

Args:
    every: ticks between two looks [steps], >= 1. Default 50.
    looks: in a row [looks], 1 to 8. Default 3.
    share: of a layer's units, 0 < share <= 1. Default 0.5.
    values: numbers that must have been seen of a unit before its silence means anything, >= 1. Default 64.
Signals: deep.activations, shares of units by layer; from modules of the class ReLU, ReLU6, GELU, SiLU, Mish, Hardswish
    or one that is named like them, and RNN with ReLU.
Cost: nothing between looks; a look reads each activation once, and all its results in one transfer.
Blind to: activations that are called as functions (`torch.relu`), that run inside a compiled graph, or that need no
    gradient; batches that show fewer than `values` / 8 numbers of a unit.
Raises: PolicyError at load; never at run time.
Example:
    {type: dead_activations, every: 50 steps, share: 0.5}
Source: the DeadRelu rule of SageMaker Debugger (half of a layer's units); a unit counts only if it is zero for all
    samples of several looks, because half of all healthy ReLUs are zero for any one sample.
"""

from __future__ import annotations

from guard.detectors._base import detector
from guard.detectors._units import IdleUnits


@detector("dead_activations")
class DeadActivations(IdleUnits):
    KIND = "dead"
    WHAT = "were zero for every sample"
