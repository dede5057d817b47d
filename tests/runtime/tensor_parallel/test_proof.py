"""A layout that computes something else is found out, and what it says then."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from runtime.ranks import on_ranks
from runtime.tensor_parallel.models import qwen3
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from parastrat.errors import ParastratError, WrapError
from parastrat.runtime.communication.gloo import mesh_of_dtensors
from parastrat.runtime.tensor_parallel import choice, loss
from parastrat.runtime.tensor_parallel.attending import NoEmptyAttention
from parastrat.runtime.tensor_parallel.choice import chosen_layout
from parastrat.runtime.tensor_parallel.computed import Task, results
from parastrat.runtime.tensor_parallel.copies import Source
from parastrat.runtime.tensor_parallel.layout import Group, Inside, Layout, Role
from parastrat.runtime.tensor_parallel.own_plan import own_layout
from parastrat.runtime.tensor_parallel.proof import proven

pytestmark = pytest.mark.slow


def without(layout: Layout, ending: str, role: Role | None = None) -> Layout:
    """The layout with a module left out, or in another role."""
    groups: list[Group] = []
    for group in layout.groups:
        parts = {
            name: part if not name.endswith(ending) else replace(part, role=role or part.role)
            for name, part in group.parts.items()
            if role or not name.endswith(ending)
        }
        groups.append(replace(group, parts=parts))
    return Layout(groups=tuple(groups))


class Evaluating(nn.Module):
    """Two columns with their rows, between the second of which evaluation computes something else."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(self.up(x).relu())
        wide = self.wide(x)
        return x + self.narrow(wide.relu() if self.training else wide.softmax(-1))


class Keeping(nn.Module):
    """Columns with their rows: two keep what the loss may read, the last what has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.inner, self.outer = nn.Linear(8, 32), nn.Linear(32, 8)
        self.wide, self.narrow = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.penalty = self.up.weight.square().sum()
        x = x + self.down(self.up(x).relu())
        self.features = [self.inner(x).relu()]
        x = x + self.outer(self.features[0])
        seen = self.wide(x).relu()
        self.seen = seen.detach()
        return x + self.narrow(seen)


def on_two() -> dict[str, Any]:
    dist.init_process_group("gloo")
    mesh = mesh_of_dtensors("cpu", (2,), ("tp",), ("tp",))
    torch.manual_seed(0)
    model = qwen3()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(0))
    task = Task(inputs=ids)
    expected = results(model, task)
    layout = own_layout(model)
    assert layout is not None
    changed = {
        "right": layout,
        "norm not summed": without(layout, "q_norm"),
        "row is a column": without(layout, "down_proj", Role.COLUMN),
        "row is missing": without(layout, "down_proj"),
        "column is gathered": without(layout, "k_proj", Role.COLUMN_GATHERED),
    }
    verdicts = {name: proven(model, expected, task, each, mesh) for name, each in changed.items()}
    found = {name: (bool(verdict), str(verdict)) for name, verdict in verdicts.items()}
    source = Source(module=model, sample_inputs=None, record=None, device=torch.device("cpu"))
    chosen = chosen_layout(source, mesh)
    evaluating = chosen_layout(replace(source, module=Evaluating(), sample_inputs=torch.randn(2, 8)), mesh)
    keeping = chosen_layout(replace(source, module=Keeping(), sample_inputs=torch.randn(2, 8)), mesh)
    refused = ""
    try:
        chosen_layout(replace(source, module=torch.nn.Linear(3, 3)), mesh)
    except WrapError as error:
        refused = f"{error} {error.hint}"
    dist.barrier()
    dist.destroy_process_group()
    return {
        "verdicts": found,
        "kinds": {group.kind for group in chosen.groups},
        "refused": refused,
        "keeping": {group.kind: group.inside for group in keeping.groups},
        "evaluating": {group.kind: group.inside for group in evaluating.groups},
    }


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    first, second = on_ranks(2, on_two)
    assert first == second
    return first


def test_what_is_right_is_proven(found: dict[str, Any]) -> None:
    assert found["verdicts"]["right"] == (True, "proven")
    assert "model.layers.*.self_attn" in found["kinds"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("norm not summed", "q_norm.weight differs by"),
        ("row is a column", "Error"),
        ("row is missing", "Error"),
        ("column is gathered", "q_proj.weight differs by"),
    ],
)
def test_what_is_wrong_is_found_out(change: str, said: str, found: dict[str, Any]) -> None:
    right, verdict = found["verdicts"][change]
    assert not right
    assert said in verdict


def test_a_model_that_nothing_divides_is_refused_with_what_to_do(found: dict[str, Any]) -> None:
    assert "nothing of this Linear can be divided by tp 2" in found["refused"]
    assert "without tp" in found["refused"]


def test_evaluation_is_proven_too(found: dict[str, Any]) -> None:
    """A softmax over a share of the features is another; DTensors know the whole."""
    assert found["evaluating"] == {"{up,down}": Inside.LOCAL, "{wide,narrow}": Inside.DTENSORS}


def test_what_is_kept_for_a_loss_is_proven_too(found: dict[str, Any]) -> None:
    """A share's penalty is another; what has no gradient is a share that nobody trains by."""
    assert found["keeping"] == {"{wide,narrow}": Inside.LOCAL}


class TwoVocabularies(nn.Module):
    """An embedding that was made for more ids than the weight that it was tied to has."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(64, 16), nn.Embedding(160, 16, padding_idx=63)
        self.target.weight = self.source.weight
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.source(ids) + self.target(ids.flip(0))
        return x + self.down(torch.relu(self.up(x)))


def rows_of_tied_weights() -> dict[str, Any]:
    dist.init_process_group("gloo")
    mesh = mesh_of_dtensors("cpu", (2,), ("tp",), ("tp",))
    ids = torch.arange(64).view(2, 32)
    source = Source(module=TwoVocabularies(), sample_inputs=ids, record=None, device=torch.device("cpu"))
    layout = chosen_layout(source, mesh)
    dist.destroy_process_group()
    return {"parts": sorted(layout.parts), "left": [str(left) for left in layout.left]}


def test_an_embedding_has_the_rows_of_its_weight() -> None:
    for one in on_ranks(2, rows_of_tied_weights):
        assert one["parts"] == ["down", "source", "target", "up"], one["left"]


class AloneError(Exception):
    """What fails on one rank only."""


class Failing(nn.Module):
    """Columns and rows whose code may raise on rank 1 alone.

    Args:
        when: it raises: ``divided``: in the forward of a divided copy; ``backward``: in its backward;
            ``caught``: in the forward too, where another rank's module goes on after any error;
            ``between``: when it is divided; ``whole``: in the forward of the copy.
    """

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when
        self.embed, self.up, self.down = nn.Embedding(64, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.head = nn.Linear(16, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        divided = isinstance(self.up.weight, DTensor) or self.up.weight.shape[0] < self.up.out_features
        first = dist.get_rank() == 0
        if not first and (self.when == "whole" or (self.when in ("divided", "caught") and divided)):
            raise AloneError(self.when)
        if not first and divided and self.when == "backward":
            x.register_hook(failing)
        try:
            x = x + self.down(torch.relu(self.up(x)))
        except Exception:
            if self.when != "caught":
                raise
        return self.head(x)


def failing(_gradient: torch.Tensor) -> torch.Tensor:
    raise AloneError("backward")


def one_rank_fails() -> dict[str, tuple[str, str]]:
    dist.init_process_group("gloo")
    mesh = mesh_of_dtensors("cpu", (2,), ("tp",), ("tp",))
    ids = torch.arange(64).view(2, 32)
    found = {}
    for when in ("divided", "backward", "caught", "between", "loss", "whole"):
        source = Source(module=Failing(when), sample_inputs=ids, record=None, device=torch.device("cpu"))
        begun = time.monotonic()
        with ExitStack() as stack:
            if when == "between" and dist.get_rank() == 1:
                stack.enter_context(patch.object(choice, "derived_layout", side_effect=AloneError(when)))
            if when == "loss" and dist.get_rank() == 1:
                stack.enter_context(patch.object(loss, "results", side_effect=AloneError(when)))
            try:
                layout = chosen_layout(replace(source, loss=when == "loss"), mesh)
                found[when] = ("divides", "; ".join(map(str, layout.left)))
            except ParastratError as error:
                found[when] = (type(error).__name__, error.message)
        assert time.monotonic() - begun < 60
    dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def failed() -> list[dict[str, tuple[str, str]]]:
    return on_ranks(2, one_rank_fails)


@pytest.mark.parametrize("when", ["divided", "backward", "caught"])
def test_what_raises_on_one_rank_alone_is_not_proven_on_any(
    when: str, failed: list[dict[str, tuple[str, str]]]
) -> None:
    assert failed[0][when] == failed[1][when]
    assert f"{{up,down}}: not proven: rank 1: AloneError: {when}" in failed[0][when][1]


@pytest.mark.parametrize("when", ["between", "whole"])
def test_a_rank_that_fails_beside_the_trials_is_named_by_all(
    when: str, failed: list[dict[str, tuple[str, str]]]
) -> None:
    (first, heard), (second, said) = failed[0][when], failed[1][when]
    assert (first, second) == ("MismatchError", "WrapError")
    assert f"AloneError: {when}" in said
    assert heard == f"rank 1 refused: {said}"


def test_a_loss_that_one_rank_cannot_try_is_whole_on_all(
    failed: list[dict[str, tuple[str, str]]],
) -> None:
    assert failed[0]["loss"] == failed[1]["loss"]
    assert failed[0]["loss"][0] == "divides"
    assert "its loss cannot be tried: AloneError: loss" in failed[0]["loss"][1]


def test_attention_without_heads_is_refused_while_layouts_are_tried() -> None:
    q, none = torch.zeros(2, 4, 8, 8), torch.zeros(2, 0, 8, 8)
    with NoEmptyAttention(), pytest.raises(ValueError, match="without elements"):
        functional.scaled_dot_product_attention(q, none, none)
    with NoEmptyAttention():
        assert functional.scaled_dot_product_attention(q, q, value=q).shape == q.shape
