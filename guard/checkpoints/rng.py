"""All random number generators a training loop draws from, as one value."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class RngState:
    """States of python, numpy, torch CPU and every initialised CUDA device."""

    python: Any
    numpy: Any
    cpu: torch.Tensor
    cuda: tuple[torch.Tensor, ...]

    @classmethod
    def capture(cls) -> RngState:
        """Reads, draws nothing. numpy's only if the program has loaded numpy."""
        numpy = sys.modules.get("numpy")
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return cls(random.getstate(), numpy.random.get_state() if numpy else None, torch.get_rng_state(), cuda)

    @classmethod
    def of_torch(cls) -> RngState:
        """Torch's alone, which is what forward and backward passes draw from; cheap enough for every step."""
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
        return cls(None, None, torch.default_generator.get_state(), cuda)

    def alike(self, other: RngState) -> bool:
        """Torch would draw the same."""
        cuda = len(self.cuda) == len(other.cuda) and all(map(torch.equal, self.cuda, other.cuda))
        return cuda and torch.equal(self.cpu, other.cpu)

    def restore(self) -> None:
        """Puts back what was captured."""
        if self.python is not None:
            random.setstate(self.python)
        if self.numpy is not None:
            import numpy

            numpy.random.set_state(self.numpy)
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(list(self.cuda[: torch.cuda.device_count()]))
