"""A training that trueup captures from outside, msprobe from inside: ``same_program.py FAULT [CONFIG.JSON]``.

It gives arguments by name, leaves a dropout without effect, clips, masks with infinities and fuses its
queries, keys and values: what the two tools write down differently.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

HIDDEN, HEADS, WORDS = 32, 4, 64


class Block(nn.Module):
    """A layer of a small GPT."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(HIDDEN, eps=eps), nn.LayerNorm(HIDDEN)
        self.qkv, self.proj = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(0.0)

    def forward(self, hidden: Any, *, mask: Any) -> Any:
        """(batch, length, hidden) -> the same."""
        batch, length, size = hidden.shape
        each = self.qkv(self.before(hidden)).view(batch, length, 3, HEADS, size // HEADS)
        q, k, v = each.permute(2, 0, 3, 1, 4)
        scores = torch.matmul(q, k.transpose(-1, -2)) * (size // HEADS) ** -0.5
        seen = F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v
        hidden = hidden + self.dropout(self.proj(input=seen.transpose(1, 2).reshape(batch, length, size)))
        return hidden + self.down(F.gelu(input=self.up(self.after(input=hidden)), approximate="tanh"))


class GPT(nn.Module):
    """Tokens and labels -> loss and logits."""

    def __init__(self, *, fault: bool) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(WORDS, HIDDEN), nn.Embedding(HIDDEN, HIDDEN)
        self.layers = nn.ModuleList(Block(1e-3 if fault and at == 1 else 1e-6) for at in range(2))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, WORDS, bias=False)

    def forward(self, tokens: Any, labels: Any) -> dict[str, Any]:
        """Both (batch, length)."""
        length = tokens.shape[1]
        hidden = self.embedding(tokens) + self.position(torch.arange(length))
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        for layer in self.layers:
            hidden = layer(hidden, mask=mask)
        logits = self.head(self.norm(hidden))
        return {"loss": F.cross_entropy(logits.view(-1, WORDS), labels.reshape(-1)), "logits": logits}


def main() -> None:
    """Two steps."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = GPT(fault=sys.argv[1] == "fault")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    debugger = None
    if len(sys.argv) > 2:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(config_path=sys.argv[2])
    for _ in range(2):
        if debugger is not None:
            debugger.start(model=model)
        tokens = torch.randint(0, WORDS, (2, 17))
        loss = model(tokens=tokens[:, :-1], labels=tokens[:, 1:])["loss"]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()


if __name__ == "__main__":
    main()
