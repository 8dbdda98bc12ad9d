"""Real text that every machine has: Python's own help topics, cut into batches of characters."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BATCH, CONTEXT = 12, 48  # sequences; characters each
_VALIDATION = 0.1  # share of the text, from its end
_VALIDATION_BATCHES = 24


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch.

    Args:
        x, y: [BATCH, CONTEXT] int64, characters and the ones that follow them.
        weight: [BATCH] float32, how much each sequence counts in the loss.
    """

    x: torch.Tensor
    y: torch.Tensor
    weight: torch.Tensor


class Text:
    """The text as numbers, a part of it kept for validation."""

    def __init__(self) -> None:
        from pydoc_data.topics import topics

        text = "\n\n".join(topics[name] for name in sorted(topics))
        numbers = {character: i for i, character in enumerate(sorted(set(text)))}
        everything = torch.tensor([numbers[c] for c in text])
        cut = int(len(text) * (1 - _VALIDATION))
        self.vocabulary, self.characters = len(numbers), len(text)
        self._train, self._held_out = everything[:cut], everything[cut:]

    def train(self, seed: int, index: int) -> Batch:
        """Batch number `index`; the same whenever it is asked for."""
        return _draw(self._train, 1_000_003 * seed + index)

    def validation(self) -> list[Batch]:
        """Always the same batches."""
        return [_draw(self._held_out, i) for i in range(_VALIDATION_BATCHES)]


def _draw(text: torch.Tensor, seed: int) -> Batch:
    starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1), generator=torch.Generator().manual_seed(seed))
    piece = text[starts + torch.arange(CONTEXT + 1)]
    return Batch(piece[:, :-1], piece[:, 1:], torch.ones(BATCH))
