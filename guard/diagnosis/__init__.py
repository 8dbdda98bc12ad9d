"""Diagnosis: the failing step is tried again aside, with one thing changed at a time, and the cause read off.

`looks` measures one tensor, `probe` watches one forward and backward pass (`functions` and `models` are what it knows
of torch), `samples` looks at a batch, `bench` makes experiments through the loop and `aside` without it, `plan` decides
which, `inquiry` is what the guard calls. The verdict is `guard.incidents.diagnose`.
"""

from guard.diagnosis.inquiry import Inquiry
from guard.diagnosis.subject import Subject

__all__ = ["Inquiry", "Subject"]
