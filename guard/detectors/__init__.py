"""Detectors: floats in, a `Detection` out. One fault per file; the file name is its `type` in YAML."""

from guard.detectors._base import DETECTORS, Detector, detector

__all__ = ["DETECTORS", "Detector", "detector"]
