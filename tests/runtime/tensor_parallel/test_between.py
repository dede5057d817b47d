"""Forwards that later do between columns and rows what they did not when tp was proven."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime.models import plan, tokens
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import parastrat
from parastrat.errors import WrapError
from parastrat.runtime.tensor_parallel.between import Passage, allowed

Way = Callable[[torch.Tensor], torch.Tensor]


class Mul(torch.autograd.Function):
    """A function of somebody's own, under the name of an operator of torch's."""

    @staticmethod
    def forward(_ctx: Any, h: torch.Tensor) -> torch.Tensor:
        return h.softmax(-1)

    @staticmethod
    def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


def attended(h: torch.Tensor) -> torch.Tensor:
    return functional.scaled_dot_product_attention(h, h, h)


WAYS: dict[str, Way] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "clipped, in half": lambda h: h.bfloat16().clamp(-1, 1).float(),
    "dropped out": lambda h: functional.dropout(h, 0.5),
    "in place": functional.relu_,
    "gated": lambda h: h * h.sigmoid() + h.masked_fill(h > 1, 0.0),
    "softmax": lambda h: h.softmax(-1),
    "softmax of the last": lambda h: h.softmax(2),
    "mean": lambda h: h - h.mean(-1, keepdim=True),
    "mean of all": lambda h: h / h.mean(),
    "norm": lambda h: functional.layer_norm(h, (16,)),
    "halves": lambda h: torch.cat(h.chunk(2, -1)[::-1], -1),
    "running sum": lambda h: torch.relu(h).cumsum(-1),
    "in place, softmax": lambda h: functional.relu_(h).softmax(-1),
    "of positions": lambda h: h.cumsum(1) - h[:, :1] + h.mean((0, 1)),
    "own function": Mul.apply,  # type: ignore[no-untyped-call]
    "heads": lambda h: h.view(2, 3, 4, 4).softmax(-1).view(2, 3, 16),
    "attention": lambda h: attended(h.unsqueeze(1)).squeeze(1),
    "attention in steps": lambda h: (h @ h.transpose(-1, -2)).softmax(-1) @ h,
}
POINTWISE = ("relu", "gelu", "clipped, in half", "dropped out", "in place", "gated")
ALONG = (
    *("softmax", "softmax of the last", "mean", "mean of all", "norm", "halves", "running sum"),
    "in place, softmax",
)
UNKNOWN = ("own function", "heads", "attention", "attention in steps")


class Divided(nn.Module):
    """A column and its row, of which only what lies between is looked at."""

    def __init__(self, passage: Passage, way: Way) -> None:
        super().__init__()
        self.up, self.down, self.way = nn.Linear(8, 16), nn.Linear(16, 8), way
        self.passage, self.begun = passage, passage.column()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.begun(self.up(x))
        y: torch.Tensor = x + self.down(self.passage.row(self.way(h)))
        return y


def steps_of(*names: str) -> set[tuple[str, tuple[int, ...] | None]]:
    noted: set[tuple[str, tuple[int, ...] | None]] = set()
    for name in names:
        Divided(Passage(kind="mlp", noted=noted), WAYS[name])(batch()).sum().backward()
    return noted


def held_to(*names: str) -> Passage:
    return Passage(kind="mlp", proven=allowed(steps_of(*names)))


def batch() -> torch.Tensor:
    return torch.randn(2, 3, 8, requires_grad=True)


@pytest.mark.parametrize("name", POINTWISE)
def test_what_computes_each_element_of_its_own_is_free(name: str) -> None:
    with warnings.catch_warnings(action="error"):
        Divided(held_to("relu"), WAYS[name])(batch())


@pytest.mark.parametrize("name", ALONG)
def test_what_works_along_the_features_is_refused(name: str) -> None:
    model = Divided(held_to("relu", "of positions"), WAYS["relu"])
    model(batch()).sum().backward()
    model.way = WAYS[name]
    with pytest.raises(WrapError, match="of mlp the forward now works along the features"):
        model(batch())


@pytest.mark.parametrize("name", [name for name in WAYS if name not in POINTWISE])
def test_what_was_proven_is_held_to_nothing(name: str) -> None:
    with warnings.catch_warnings(action="error"):
        Divided(held_to(name), WAYS[name])(batch())


def test_what_works_along_positions_is_free() -> None:
    with warnings.catch_warnings(action="error"):
        Divided(held_to("relu"), WAYS["of positions"])(batch())


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_cannot_be_told_is_warned_of_once(name: str) -> None:
    model = Divided(held_to("relu"), WAYS[name])
    with pytest.warns(UserWarning, match="of mlp the forward now does what it did not when tp was proven"):
        model(batch())
    with warnings.catch_warnings(action="error"):
        model(batch())


@pytest.mark.parametrize(("proven", "later"), [UNKNOWN[2:], UNKNOWN[:1:-1]])
def test_attention_may_have_other_kernels(proven: str, later: str) -> None:
    with warnings.catch_warnings(action="error"):
        Divided(held_to(proven, "of positions"), WAYS[later])(batch())


def test_layers_above_and_below_are_not_looked_at() -> None:
    """Their norms are whole; and no column's call waits for a row that was never called."""
    passages = [held_to("relu"), held_to("relu")]
    below, above = (Divided(passage, WAYS["relu"]) for passage in passages)
    norm = nn.LayerNorm(8)
    with warnings.catch_warnings(action="error"):
        for _ in range(2):
            above.up(norm(below(batch())))
            above(norm(below(batch()))).softmax(-1).sum().backward()


def test_what_is_computed_again_is_looked_at_again() -> None:
    model = Divided(held_to("relu"), WAYS["relu"])
    output = checkpoint(model, batch(), use_reentrant=True)
    model.way = WAYS["softmax"]
    with pytest.raises(WrapError, match="now works along the features"):
        output.sum().backward()


def test_without_gradients_nothing_is_known() -> None:
    model = Divided(held_to("relu"), WAYS["softmax"])
    with torch.no_grad():
        model(batch())


class Blocks(nn.Module):
    """Blocks of one kind, of which the last may go another way than the first ones, by its number.

    Args:
        odd: what computes otherwise: ``last``: the last block; ``later``: all of them, once they are told.
    """

    def __init__(self, odd: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 8)
        self.blocks = nn.ModuleList(Block(index, odd=odd) for index in range(6))
        self.head = nn.Linear(8, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


class Block(nn.Module):
    soft = False

    def __init__(self, index: int, *, odd: str) -> None:
        super().__init__()
        self.index, self.odd = index, odd
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.up(self.norm(x)))
        soft = self.soft or (self.odd == "last" and self.index == 5)
        y: torch.Tensor = x + self.down(h.softmax(-1) if soft else h)
        return y


def trained(odd: str) -> list[str]:
    """Return what two steps raise, each; what is set between them was not when tp was proven."""
    model = parastrat.auto_parallelize(
        Blocks(odd), plan=plan(tp=2), sample_inputs=tokens(0, 4, vocab=64)[0]
    )
    said = []
    for step in range(2):
        try:
            model(tokens(step, 4, vocab=64)[0]).sum().backward()
        except WrapError as error:
            said.append(error.message)
        for block in model.modules():
            if isinstance(block, Block):
                block.soft = odd == "later"
    return said


def on_two() -> dict[str, list[str]]:
    return {odd: trained(odd) for odd in ("", "last", "later")}


@pytest.mark.slow
def test_no_rank_computes_along_its_share_of_the_features() -> None:
    for found in on_ranks(2, on_two):
        assert found[""] == []
        assert [len(found["last"]), len(found["later"])] == [2, 1]
        assert (
            "blocks.*.{up,down} the forward now works along the features (SoftmaxBackward0)"
            in found["later"][0]
        )
