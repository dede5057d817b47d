"""Values that a builder has for real, as of a file, stay: initialisers do not draw them anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils import spectral_norm as earlier_spectral_norm
from torch.nn.utils import weight_norm as earlier_weight_norm

import parastrat
from parastrat.errors import WrapError
from parastrat.plan import Plan


def built(build: Callable[[], nn.Module], chosen: Plan | None = None) -> nn.Module:
    return parastrat.auto_parallelize(build, plan=chosen or plan(), sample_inputs=torch.ones(1, 8))


class Initialised(nn.Module):
    """Its initialiser runs in its constructor, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(8, 8), nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 8)
        self.apply(self._init_weights)

    def _init_weights(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def trained() -> dict[str, torch.Tensor]:
    """Weights that no initialiser gives."""
    with torch.device("cpu"):
        return {name: torch.full_like(value, 3.0) for name, value in Initialised().state_dict().items()}


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("assign", [False, True])
def test_a_state_that_the_builder_loads_stays(tmp_path: Path, *, assign: bool) -> None:
    torch.save(trained(), tmp_path / "weights.pt")

    def build() -> nn.Module:
        model = Initialised()
        model.load_state_dict(torch.load(tmp_path / "weights.pt"), assign=assign)
        return model

    for name, value in built(build).state_dict().items():
        assert value.eq(3).all(), name


def test_a_part_that_the_builder_makes_for_real_stays() -> None:
    def build() -> nn.Module:
        with torch.device("cpu"):
            body = Initialised()
            body.load_state_dict(trained())
        return nn.Sequential(body, nn.Linear(8, 4))

    model = built(build)
    assert all(value.eq(3).all() for value in model[0].parameters())  # type: ignore[operator, union-attr]
    assert 0.1 < model[1].weight.std() < 0.3


def test_rows_that_the_builder_writes_stay() -> None:
    def build() -> nn.Module:
        model = Initialised()
        with torch.no_grad():
            model.embed.weight[:3].copy_(torch.full((3, 8), 5.0, device="cpu"))
        return model

    weight = built(build).get_parameter("embed.weight")
    assert weight[:3].eq(5).all()
    assert 0.01 < weight[3:].std() < 0.03


WIDE = 64
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDE, WIDE)),
    "weight norm, earlier": lambda: earlier_weight_norm(nn.Linear(WIDE, WIDE)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDE, WIDE)),
    "spectral norm, earlier": lambda: earlier_spectral_norm(nn.Linear(WIDE, WIDE)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(WIDE, WIDE)),
}


def with_layer(layer: Callable[[], nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(8, WIDE), layer(), nn.Linear(WIDE, 8))


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated")
@pytest.mark.parametrize("kind", list(LAYERS))
def test_weights_that_are_computed_begin_as_in_a_real_build(kind: str) -> None:
    torch.manual_seed(0)
    model, real = built(partial(with_layer, LAYERS[kind])), with_layer(LAYERS[kind])
    found, expected = model.state_dict(), real.state_dict()
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name].std().item() == pytest.approx(value.std().item(), rel=0.3, abs=0.01), name
    # what is normalised or rotated holds of the weight that is read
    weights = [each[1].weight for each in (model, real)]
    if "orthogonal" in kind:
        assert torch.allclose(weights[0] @ weights[0].T, torch.eye(WIDE), atol=1e-5)
    if kind == "weight norm":
        assert torch.allclose(weights[0], found["1.parametrizations.weight.original1"])
    if kind == "spectral norm":
        assert torch.linalg.matrix_norm(model[1].weight, 2).item() == pytest.approx(1, rel=0.1)


class Masked(nn.Module):
    """Draws what it computes with: of that nobody knows how to draw it again."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.rand(8, 8))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight * self.mask


def test_what_is_computed_with_other_draws_is_refused() -> None:
    def build() -> nn.Module:
        layer = nn.Linear(8, 8)
        parametrize.register_parametrization(layer, "weight", Masked())
        return nn.Sequential(layer)

    with pytest.raises(WrapError, match="0 has parametrizations"):
        built(build)


PLANS = {"ddp": plan(dp_replicate=2), "fsdp2": plan(dp_shard=2), "tp": plan(tp=2)}


def of_first_rank(chosen: Plan) -> float:
    """Return the sum of what each rank's builder had for real, of which each drew another."""
    torch.manual_seed(int(os.environ["RANK"]))

    def build() -> nn.Module:
        with torch.device("cpu"):
            body = nn.Sequential(Block(), Block())
        layer = parametrizations.weight_norm(nn.Linear(8, 8))
        return nn.Sequential(layer, nn.LayerNorm(8), body, nn.Linear(8, 8))

    model = built(build, chosen)
    torch.manual_seed(0)
    expected, inner = build(), getattr(model, "module", model)
    found = inner.state_dict()
    return sum(
        float((_whole(found[name]) - value).abs().max())
        for name, value in expected.state_dict().items()
        if not name.startswith(("0.bias", "1.", "3."))
    )


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def everything() -> dict[str, Any]:
    return answers({name: partial(of_first_rank, chosen) for name, chosen in PLANS.items()})


@pytest.mark.slow
def test_ranks_have_those_of_the_first() -> None:
    for found in on_ranks(2, everything):
        assert found == dict.fromkeys(PLANS, 0.0)
