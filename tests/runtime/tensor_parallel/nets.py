"""Small nets whose layouts are derived: blocks of one kind between an embedding and a head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from runtime.token_models import VOCABULARY
from torch import nn

WIDTH = 32
#: all that tensor parallelism over two ranks divides
SEQUENCE: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "loss_parallel": True}


class Net(nn.Module):
    """Runs three blocks one after the other."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList(block() for _ in range(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


class Logits(nn.Module):
    """What a model of transformers predicts; its own plan is out of sight."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=ids).logits
        return logits
