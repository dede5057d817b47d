"""Small models and plans that the runtime's tests share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from parastrat.plan import Backend, Mesh, Plan, Shard
from parastrat.workload import Precision

_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


def plan(**fields: object) -> Plan:
    axes = {name: fields.pop(name) for name in _AXES if name in fields}
    sharded = axes.get("dp_shard", 1) != 1
    defaults: dict[str, object] = {
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "precision": Precision.FP32,
        "backend": Backend.GLOO,
        "shard": Shard.PARAMETERS if sharded else Shard.NONE,
        "reshard_after_forward": axes.get("pp", 1) == 1,
    }
    return Plan(mesh=Mesh(**axes), **(defaults | fields))  # type: ignore[arg-type]


class Layer(nn.Module):
    """A pre-norm transformer layer with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Block(nn.Module):
    """Two products beside what passes them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).tanh())


class Gpt(nn.Module):
    """Tied embeddings, learned positions; the constructor shrinks the residual projections."""

    def __init__(self, layers: int = 2, width: int = 32, heads: int = 4, vocab: int = 61) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(16, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight
        self.apply(self._init_weights)
        for layer in self.layers:
            nn.init.normal_(layer.down.weight, std=0.02 / (2 * layers) ** 0.5)
        self.register_buffer("steps", torch.arange(16), persistent=False)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.positions(self.steps[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def token_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def tokens(step: int, samples: int, vocab: int = 61) -> tuple[torch.Tensor, torch.Tensor]:
    """The global batch of one step, the same wherever it is asked for."""
    drawn = torch.randint(vocab, (samples, 17), generator=torch.Generator().manual_seed(step))
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
