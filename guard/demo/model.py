"""A small character-level transformer, with a mistake in it that FP16 punishes."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

_CAP = 40.0  # scores are softly bounded, as in Gemma 2; exp(40) fits BF16 and FP32, not FP16


class Attention(nn.Module):
    """Causal self-attention whose softmax is written out: ``exp(score) / sum``, the maximum not subtracted first.

    Right as long as ``exp(score)`` fits the dtype. FP16 ends at 65504 = exp(11.09), and scores grow as a model learns.
    """

    past: torch.Tensor  # [context, context] float, 1 where a place may look

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("past", torch.tril(torch.ones(context, context)), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, time, width] -> the same."""
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / (d // self.heads)
        weight = (_CAP * torch.tanh(score / _CAP)).exp() * self.past[:t, :t].to(score.dtype)
        mixed = weight / weight.sum(-1, keepdim=True) @ v
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, context)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class CharTransformer(nn.Module):
    """Predicts the next character.

    Args:
        vocabulary: number of characters.
        context: longest input [characters].
    """

    def __init__(self, vocabulary: int, context: int, width: int = 48, heads: int = 3, layers: int = 2) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, context) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x: torch.Tensor) -> Any:
        """[batch, time] of character numbers -> [batch, time, vocabulary] logits."""
        h = self.characters(x) + self.places.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(h)))
