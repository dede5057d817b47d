"""Forwards that later do between columns and rows what they did not when tp was proven."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from runtime.models import plan, tokens
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import RegisterPostBackwardFunction
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from versions import follows_collectives

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import Compile
from parastrat.runtime.tensor_parallel.between import Passage, allowed, features_of
from parastrat.runtime.tensor_parallel.layout import Layout, Step
from parastrat.runtime.tensor_parallel.sequence import POSITIONS, unstreamed

MLP = features_of("mlp")
NOTHING: set[Step] = set()

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
    "handed on by FSDP2": lambda h: RegisterPostBackwardFunction.apply(None, h)[0],
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
    "own function": Mul.apply,
    "heads": lambda h: h.view(2, 3, 4, 4).softmax(-1).view(2, 3, 16),
    "attention": lambda h: attended(h.unsqueeze(1)).squeeze(1),
    "attention in steps": lambda h: (h @ h.transpose(-1, -2)).softmax(-1) @ h,
}
POINTWISE = ("relu", "gelu", "clipped, in half", "dropped out", "in place", "handed on by FSDP2", "gated")
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
        self.passage, self.begun = passage, passage.begin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.begun(self.up(x))
        y: torch.Tensor = x + self.down(self.passage.end(self.way(h)))
        return y


def steps_of(*names: str) -> set[Step]:
    noted: set[Step] = set()
    for name in names:
        Divided(Passage(MLP, noted=noted), WAYS[name])(batch()).sum().backward()
    return noted


def held_to(*names: str) -> Passage:
    return Passage(MLP, proven=allowed(steps_of(*names)))


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


def test_a_way_that_was_found_right_lets_no_other_pass() -> None:
    """Ways of the same operators that work along other dimensions, or on other tensors, are others."""
    model = Divided(held_to("relu", "of positions"), WAYS["of positions"])
    for _ in range(2):
        model(batch())
    model.way = WAYS["softmax"]
    with pytest.raises(WrapError, match="now works along the features"):
        model(batch())
    gates = Divided(held_to("relu", "of positions"), lambda h: h.relu() * h.softmax(1).relu())
    for _ in range(2):
        gates(batch())
    gates.way = lambda h: h.relu() * h.softmax(2).relu()
    with pytest.raises(WrapError, match="now works along the features"):
        gates(batch())


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


ALONG_POSITIONS: dict[str, Way] = {
    "mean": lambda x: x + x.mean(1, keepdim=True),
    "first": lambda x: x + x[:, :1],
    "turned": lambda x: x + x.roll(1, 1),
    "shifted": lambda x: x + functional.pad(x, (0, 0, 1, 0))[:, :-1],
    "softmax": lambda x: x.softmax(-2),
    "sum": lambda x: x / x.sum(),
}


def in_stream(way: Way, *, noted: set[Step] | None = None, proven: set[Step] = NOTHING) -> None:
    """Take a way between a block's input and its output, where positions are divided."""
    passage = Passage(POSITIONS, noted=noted, proven=frozenset(proven))
    begin = passage.begin()
    passage.end(way(begin(batch() * 1)))


@pytest.mark.parametrize("name", ALONG_POSITIONS)
def test_what_works_along_positions_is_refused_where_these_are_divided(name: str) -> None:
    noted: set[Step] = set()
    way = ALONG_POSITIONS[name]
    in_stream(way, noted=noted)
    in_stream(way, proven=noted)
    with pytest.raises(WrapError, match="in the blocks the forward now works along the positions"):
        in_stream(way)


def test_norms_of_features_are_free_where_positions_are_divided() -> None:
    with warnings.catch_warnings(action="error"):
        in_stream(lambda x: functional.layer_norm(x, (8,)).softmax(-1) + x.mean(-1, keepdim=True))
        in_stream(lambda x: functional.pad(x, (0, 1))[..., :-1])


def test_stages_that_get_whole_positions_hold_their_features_as_before() -> None:
    layout = Layout(groups=(), sequence=True, steps={MLP.where: frozenset(steps_of("mean"))})
    assert unstreamed(layout, "stages cut it").steps == layout.steps


class Blocks(nn.Module):
    """Blocks of one kind, of which the last may go another way than the first ones, by its number.

    Args:
        odd: which blocks compute otherwise: ``last``: the last one; ``later``: all, once they are told.
        along: what, then: ``features``, ``positions``.
    """

    def __init__(self, odd: str, along: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 8)
        self.blocks = nn.ModuleList(Block(index == 5 and odd == "last", along) for index in range(6))
        self.head = nn.Linear(8, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


class Block(nn.Module):
    def __init__(self, otherwise: bool, along: str) -> None:
        super().__init__()
        self.otherwise, self.along = otherwise, along
        self.norm, self.inner = nn.LayerNorm(8), Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.otherwise and self.along == "positions":
            x = x + x.mean(1, keepdim=True)
        y: torch.Tensor = x + self.inner(self.norm(x), soft=self.otherwise and self.along == "features")
        return y


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor, *, soft: bool) -> torch.Tensor:
        h = torch.relu(self.up(x))
        y: torch.Tensor = self.down(h.softmax(-1) if soft else h)
        return y


def trained(odd: str, along: str, **fields: Any) -> list[str]:
    """Return what three steps raise, each; what is set behind the first was not when tp was proven."""
    ids, _ = tokens(0, 4, vocab=64)
    settled = plan(tp=2, sequence_parallel=along == "positions", **fields)
    model = parastrat.auto_parallelize(Blocks(odd, along), plan=settled, sample_inputs=ids)
    said = []
    for _ in range(3):
        try:
            model(ids).sum().backward()
        except WrapError as error:
            said.append(error.message)
        for block in model.modules():
            if isinstance(block, Block):
                block.otherwise = odd == "later"
    return said


def on_two(compiled: Compile) -> dict[tuple[str, str], list[str]]:
    ways = itertools.product(("", "last", "later"), ("features", "positions"))
    with patch.object(torch, "compile", partial(torch.compile, backend="aot_eager")):
        return {(odd, along): trained(odd, along, compile=compiled) for odd, along in ways}


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [Compile.NONE, pytest.param(Compile.BLOCK, marks=follows_collectives)])
def test_no_rank_computes_along_what_it_has_a_share_of(compiled: Compile) -> None:
    for found in on_ranks(2, on_two, compiled):
        assert {way: len(said) for way, said in found.items()} == {
            ("", "features"): 0,
            ("", "positions"): 0,
            ("last", "features"): 1,
            ("last", "positions"): 1,
            ("later", "features"): 2,
            ("later", "positions"): 2,
        }
        said, _ = found["later", "features"]
        assert (
            "blocks.*.inner.{up,down} the forward now works along the features (SoftmaxBackward0)" in said
        )
        (said,) = found["last", "positions"]
        assert "in the blocks the forward now works along the positions (MeanBackward1)" in said
