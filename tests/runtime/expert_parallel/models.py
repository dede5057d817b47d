"""Small models whose tokens choose among experts, each with what makes it different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from runtime.context_parallel.models import WIDTH, Attention
from runtime.token_models import VOCABULARY
from torch import nn
from torch.nn import functional

EXPERTS, CHOICES = 4, 2


class Experts(nn.Module):
    """Stacks of all experts' weights, which are counted in an attribute."""

    def __init__(self, experts: int = EXPERTS) -> None:
        super().__init__()
        self.num_experts = experts
        self.up = nn.Parameter(torch.randn(experts, 2 * WIDTH, WIDTH) / 4)
        self.down = nn.Parameter(torch.randn(experts, WIDTH, 2 * WIDTH) / 6)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for expert in range(self.num_experts):
            token, place = torch.where(chosen == expert)
            if len(token):
                made = functional.silu(x[token] @ self.up[expert].T) @ self.down[expert].T
                found = found.index_add(0, token, made * weights[token, place, None])
        return found


class Dense(Experts):
    """Gives every expert every token, and reads no values of them."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        found = torch.zeros_like(x)
        for expert in range(self.num_experts):
            weight = (weights * (chosen == expert)).sum(-1, keepdim=True)
            found = found + functional.silu(x @ self.up[expert].T) @ self.down[expert].T * weight
        return found


class Mixing(Experts):
    """What an expert makes of a token hangs on how many others chose it."""

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        busy = torch.bincount(chosen.flatten(), minlength=self.num_experts)
        return super().forward(x, chosen, weights * busy[chosen].rsqrt())


class Scored(Experts):
    """Is given a score of every expert for each token."""

    def forward(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        weights, chosen = scores.topk(CHOICES, -1)
        return super().forward(x, chosen, weights)


class ExpertsApart(nn.Module):
    """Experts that are modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        each = torch.stack([expert(x) for expert in self.experts], -2)
        taken = each.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, WIDTH))
        return (taken * weights.unsqueeze(-1)).sum(-2)


class Block(nn.Module):
    """Means over the positions so far, and experts."""

    def __init__(self, experts: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix: nn.Module = nn.Linear(WIDTH, WIDTH)
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.mixed(self.norm(x))
        tokens = self.norm(x).flatten(0, 1)
        scores = self.router(tokens).softmax(-1)
        return x + self.of_experts(tokens, scores).view_as(x)

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        so_far = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        mixed: torch.Tensor = self.mix(x).cumsum(1) / so_far
        return mixed

    def of_experts(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        weights, chosen = scores.topk(CHOICES, -1)
        made: torch.Tensor = self.experts(tokens, chosen, weights)
        return made


class Attending(Block):
    """Attends, instead."""

    def __init__(self, experts: Callable[[], nn.Module]) -> None:
        super().__init__(experts)
        self.mix: nn.Module = Attention()

    def mixed(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.mix(x)
        return mixed


class Gated(Attending):
    """All tokens see a further layer, as much as a gate says (Qwen2-MoE)."""

    def __init__(self) -> None:
        super().__init__(Dense)
        self.up, self.down, self.gate = (
            nn.Linear(*sides) for sides in ((WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH), (WIDTH, 1))
        )

    def of_experts(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        shared = self.down(functional.silu(self.up(tokens)))
        return super().of_experts(tokens, scores) + self.gate(tokens).sigmoid() * shared


class Crowded(Block):
    """All tokens choose the first experts, and some none: other ranks' experts see no token."""

    def of_experts(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        weights, chosen = scores.topk(CHOICES, -1)
        chosen = torch.where(scores[:, :1] > 1 / EXPERTS, chosen % 2, EXPERTS)
        made: torch.Tensor = self.experts(hidden=tokens, top=chosen, weights=weights)
        return made


class Named(Experts):
    """Is called by names, and its tokens may choose none."""

    def forward(self, hidden: torch.Tensor, top: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden, top, weights)


class ByScores(Block):
    """Leaves the choice to its experts."""

    def of_experts(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.experts(tokens, scores)
        return made


class Net(nn.Module):
    """Embeds, runs its blocks one after the other, and tells the next token."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        made: torch.Tensor = self.head(x)
        return made


class Shared(Block):
    """All tokens see further experts, which stay whole."""

    def __init__(self) -> None:
        super().__init__(Experts)
        self.shared_experts = SharedExperts(2)

    def of_experts(self, tokens: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.shared_experts(tokens)
        return made + super().of_experts(tokens, scores)


class SharedExperts(Experts):
    """Works on every token."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        every = torch.arange(self.num_experts, device=x.device).expand(len(x), -1)
        return super().forward(x, every, x.new_ones(every.shape))


#: what is divided
DIVIDED: dict[str, Callable[[], Any]] = {
    "stacks": lambda: Net(lambda: Block(Experts)),
    "crowded": lambda: Net(lambda: Crowded(Named)),
    "shared": lambda: Net(Shared),
}
#: what is refused, with the reason
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "modules": (lambda: Net(lambda: Block(ExpertsApart)), "holds the stacked weights"),
    "three": (lambda: Net(lambda: Block(lambda: Experts(3))), "blocks.0.experts has 3 experts"),
    "scores": (lambda: Net(lambda: ByScores(Scored)), "blocks.0.experts is not called with tokens"),
    "crowds": (lambda: Net(lambda: Block(Mixing)), "not proven"),
}
