"""Small copies: which weights they have, and what is done where random ones compute nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.ranks import on_ranks
from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.communication.gloo import mesh_of_dtensors
from parastrat.runtime.tensor_parallel.choice import chosen_layout
from parastrat.runtime.tensor_parallel.copies import KEPT_BLOCKS, Source, skeleton, small_copies

pytestmark = pytest.mark.slow


class Rooted(nn.Module):
    """Columns and rows whose sum is scaled by a root: random weights have no real one."""

    def __init__(self, variance: float = 1.0) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(64, 16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.variance = nn.Parameter(torch.full((16,), variance))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        total: torch.Tensor = (x + self.down(torch.relu(self.up(x)))) * self.variance.sqrt()
        return total


def source(variance: float = 1.0) -> Source:
    ids = torch.arange(64).view(2, 32)
    torch.manual_seed(0)
    return Source(module=Rooted(variance), sample_inputs=ids, record=None, device=torch.device("cpu"))


def test_the_last_copies_have_weights_beside_those_of_the_model() -> None:
    given = source()
    *others, last = small_copies(given, 2)
    assert all((copied.variance < 0).any() for copied in others)
    own = dict(given.module.named_parameters())
    for name, parameter in last.named_parameters():
        assert parameter.data_ptr() != own[name].data_ptr()
        assert (parameter.sign() == own[name].sign()).all()
        assert not (parameter == own[name]).any()
        assert torch.allclose(parameter, own[name], rtol=0.6, atol=0)
        assert parameter.unique().numel() == parameter.numel()


def test_zeros_and_ones_are_moved_too() -> None:
    given = source()
    nn.init.zeros_(given.module.down.bias)
    *_, last = small_copies(given, 2)
    assert (last.down.bias != 0).all()
    assert last.down.bias.abs().max() < 0.1


def test_a_model_without_values_has_no_such_copy() -> None:
    with torch.device("meta"):
        given = source()
    meta = Source(module=given.module, sample_inputs=None, record=None, device=torch.device("cpu"))
    assert len(list(small_copies(meta, 2))) == 1


def test_kernels_give_outputs_of_ordinary_size() -> None:
    net = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ConvTranspose2d(32, 8, 3), nn.Conv2d(8, 64, 5))
    x = torch.randn(2, 16, 12, 12)
    given = Source(module=net, sample_inputs=x, record=None, device=torch.device("cpu"))
    for layer in next(small_copies(given, 2)).children():
        x = layer(torch.randn_like(x))
        assert 0.3 < x.std() < 3


def layouts() -> dict[str, Any]:
    dist.init_process_group("gloo")
    mesh = mesh_of_dtensors("cpu", (2,), ("tp",), ("tp",))
    found: dict[str, Any] = {"parts": sorted(chosen_layout(source(), mesh).parts)}
    try:
        chosen_layout(source(variance=-1.0), mesh)
    except WrapError as error:
        found["refused"] = error.message
    dist.destroy_process_group()
    return found


def test_what_random_weights_do_not_compute_is_proven_beside_its_own() -> None:
    for found in on_ranks(2, layouts):
        assert found["parts"] == ["down", "embed", "up"]
        assert found["refused"].endswith("raised ValueError: outputs or gradients are not finite")


class _Depths:
    """A config whose depth is the sum of two others, as ProphetNet's."""

    encoder_layers = decoder_layers = 3

    @property
    def num_hidden_layers(self) -> int:
        return self.encoder_layers + self.decoder_layers

    @num_hidden_layers.setter
    def num_hidden_layers(self, _depth: int) -> None:
        raise NotImplementedError


def test_a_depth_that_cannot_be_stated_stays() -> None:
    module = nn.Module()
    module.config = _Depths()
    module.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
    few = skeleton(module)
    assert len(few.layers) == KEPT_BLOCKS
    assert few.config.num_hidden_layers == module.config.num_hidden_layers
