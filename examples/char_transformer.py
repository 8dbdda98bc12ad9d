"""A small character-level transformer on Python's own help topics, guarded by one line.

python examples/char_transformer.py
guard status runs/char-transformer
"""

from pydoc_data.topics import topics

import torch
from torch import nn

import guard

CONTEXT, BATCH, WIDTH, STEPS = 48, 12, 64, 300

text = "\n\n".join(topics[name] for name in sorted(topics))
numbers = {character: i for i, character in enumerate(sorted(set(text)))}
data = torch.tensor([numbers[c] for c in text])


class CharTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(numbers), WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(numbers))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.characters(x) + self.places.weight, mask=self.mask, is_causal=True))


torch.manual_seed(0)
model = CharTransformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
guard.attach(model, optimizer, run_dir="runs/char-transformer", resume="never")  # the one line

for step in range(STEPS):
    starts = torch.randint(len(data) - CONTEXT - 1, (BATCH, 1))
    piece = data[starts + torch.arange(CONTEXT + 1)]
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == STEPS - 1:
        print(f"step {step:>4}  loss {loss.item():.3f}")
