"""Small models whose positions are divided, each with what makes it different."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from runtime.token_models import VOCABULARY
from torch import nn
from torch.nn import functional

from parastrat import chunked_cross_entropy

WIDTH, HEADS, LONGEST = 32, 4, 32


class Block(nn.Module):
    """Attention and a product; queries and keys are scaled by a table that is read by positions."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(rate)
        self.register_buffer("table", torch.linspace(0, 6, LONGEST)[:, None] * torch.ones(WIDTH // HEADS))

    def forward(self, x: torch.Tensor, **given: Any) -> torch.Tensor:
        q, k, v = self.heads(x)
        x = x + self.drop(self.out(self.mixed(q, k, v, **given).transpose(1, 2).flatten(2)))
        return x + self.down(functional.silu(self.up(x)))

    def heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        samples, length, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(samples, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        angles = self.table[:length].cos()
        return q * angles, k * angles, v

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_given: Any) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Has as many heads as its products give it features for."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.register_buffer("table", torch.linspace(0, 6, LONGEST)[:, None] * torch.ones(WIDTH // HEADS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, _ = x.shape
        q, k, v = (
            part(x).view(samples, length, -1, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        angles = self.table[:length].cos()
        mixed = functional.scaled_dot_product_attention(q * angles, k * angles, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Local(nn.Module):
    """Has its attention in a module, so that tp divides the stream between that and the products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention, self.middle = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.down(functional.silu(self.up(self.middle(x))))


class Masked(Block):
    """Is given a mask of all queries and keys."""

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=given["mask"])


class OwnMask(Block):
    """Takes the mask from a table, by its own count of positions."""

    def __init__(self) -> None:
        super().__init__()
        window = torch.ones(LONGEST, LONGEST).tril().triu(-3)
        self.register_buffer("window", window.bool())

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_given: Any) -> torch.Tensor:
        length = q.shape[-2]
        mask = self.window[:length, :length]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class Plain(Block):
    """Attention by products, which see this rank's keys alone."""

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **_given: Any) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v


class Shifting(Block):
    """Mixes neighbours, of which another rank may have one."""

    def forward(self, x: torch.Tensor, **given: Any) -> torch.Tensor:
        return super().forward(x + functional.pad(x, (0, 0, 1, 0))[:, :-1], **given)


class Counter(Block):
    """Counts what it has seen, in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor, **given: Any) -> torch.Tensor:
        self.seen += x.shape[1]
        return super().forward(x, **given)


class Net(nn.Module):
    """Embeds, runs its blocks one after the other, and tells the next token."""

    def __init__(self, block: Callable[[], nn.Module], *, masks: bool = False, tail: int = 0) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.masks, self.tail = masks, tail

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, length = self.embed(ids), ids.shape[1]
        given = {}
        if self.masks:
            given["mask"] = torch.ones(length, length, device=ids.device).tril().bool()[None, None]
        for block in self.blocks:
            x = block(x, **given)
        return self.head(self.norm(x[:, -self.tail :] if self.tail else x))


class Viewing(Net):
    """Names the number of positions between its blocks and its head, as GPT-2 of transformers does."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).view(*ids.shape, WIDTH))


class Chunked(Net):
    """Returns its loss, of logits that it makes for some tokens at a time."""

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        hidden = self.norm(x)[:, :-1]
        return chunked_cross_entropy(self.head, hidden, labels[:, :-1], chunks=3), hidden.detach()


#: what is divided
DIVIDED: dict[str, Callable[[], nn.Module]] = {
    "causal": lambda: Net(Block),
    "mask given": lambda: Net(Masked, masks=True),
    "mask of its own": lambda: Net(OwnMask),
    "counted behind the blocks": lambda: Viewing(Block),
    # the head gets a part of the positions, so that these are gathered before it
    "last positions": lambda: Net(Block, tail=3),
}
#: what is refused, with the reason
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "products": (lambda: Net(Plain), "no block calls scaled_dot_product_attention"),
    "neighbours": (lambda: Net(Shifting), "not proven"),
    "counter": (lambda: Net(Counter), "blocks.0.seen"),
}
