"""Norms over features that tp divides: as on one device, their weights divided, or left whole."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from drawn import drawn, drawn_of
from runtime import token_models
from runtime.ranks import answers, on_ranks
from runtime.tensor_parallel.models import GROUPED, SHAPE, phi3
from runtime.tensor_parallel.nets import SEQUENCE, WIDTH, Logits, Net
from runtime.token_models import Trained, calls_of, check, share, trained, wrapped
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import parastrat
from parastrat.plan import Recompute
from parastrat.runtime.tensor_parallel.counting import Counting
from parastrat.runtime.tensor_parallel.derived import derived_layout
from parastrat.runtime.tensor_parallel.layout import Layout, Role
from parastrat.workload import Precision

HEADS = 4


class Written(nn.Module):
    """An RMS norm in torch's plain operators, as OLMo 2 has it."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, features))
        self.maximum = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.maximum:
            return self.weight * x / x.abs().amax(-1, keepdim=True)
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (self.weight * scaled).to(x.dtype)


class Summed(Written):
    """The same by a sum, along a dimension that is named."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * (x * x).sum(dim=-1, keepdim=True).add(1e-6).rsqrt()


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "written": Written,
    "summed": Summed,
    "rms": nn.RMSNorm,
    "layer": nn.LayerNorm,
}


class Attention(nn.Module):
    """Queries and keys of all heads are normalised together."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.q_norm, self.k_norm = norm(WIDTH), norm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        apart = (self.q_norm(self.q(x)), self.k_norm(self.k(x)), self.v(x))
        q, k, v = (each.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for each in apart)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """A norm of all features before the row: divided like this it would be the row of a latent, too."""

    def __init__(self, norm: Callable[[int], nn.Module] | None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.norm = nn.Identity() if norm is None else norm(3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.norm(functional.silu(self.up(x))))


class Block(nn.Module):
    def __init__(self, norm: Callable[[int], nn.Module], before_row: bool) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = Attention(norm), Mlp(norm if before_row else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


def net(norm: str = "written", before_row: bool = False) -> nn.Module:
    return Net(lambda: Block(NORMS[norm], before_row))


def olmo2() -> nn.Module:
    """Its own plan gathers queries and keys before their norms."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    shape = {name: value for name, value in GROUPED.items() if name != "head_dim"}
    return Logits(Olmo2ForCausalLM(Olmo2Config(**SHAPE, **shape)))


def fused() -> nn.Module:
    """Its own plan gathers what it cuts at numbers of its config."""
    return Logits(phi3())


BUILDS: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(net, name) for name in NORMS},
    "before the row": partial(net, "written", True),
    "olmo2": olmo2,
    "fused": fused,
}
_ALL: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, "sequence"): SEQUENCE for name in BUILDS},
    **{(name, "whole"): {"tp": 2} for name in ("written", "layer", "fused")},
    ("written", "recomputed"): {**SEQUENCE, "recompute": Recompute.FULL},
    ("rms", "selective"): {**SEQUENCE, "recompute": Recompute.SELECTIVE},
}
CELLS = drawn_of(_ALL, 3)
#: models of which it is seen how they are divided
TOLD = drawn([*NORMS, "olmo2"], 3)
IN_HALF = drawn(["written", "rms", "layer"], 1)


def layouts() -> dict[str, Layout]:
    inputs = torch.zeros(2, 16, dtype=torch.long)
    return {name: derived_layout(net(*given), inputs, 2) for name, given in GIVEN.items()}


GIVEN: dict[str, tuple[Any, ...]] = {"before the row": ("written", True), "rms": ("rms",)}


def every_cell() -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for (name, kind), fields in CELLS.items():
        found[name, kind] = trained(BUILDS[name], **fields)
    found["calls"] = {name: calls_of(wrapped(BUILDS[name], **SEQUENCE)) for name in (*TOLD, "fused")}
    found["shares"] = shares(wrapped(BUILDS["written"], **SEQUENCE))
    found["changed"] = changed(wrapped(BUILDS["written"], **SEQUENCE))
    found["copied"] = copied(wrapped(fused, tp=2))
    found["half"] = losses_in_half()
    return found


def shares(model: nn.Module) -> dict[str, tuple[int, ...]]:
    held = {name: each for name, each in model.named_parameters() if "norm" in name}
    return {name: tuple(each.to_local().shape) for name, each in held.items() if isinstance(each, DTensor)}


def changed(model: nn.Module) -> str:
    """What is said where norms take another way than the one that was proven."""
    for part in model.modules():
        if isinstance(part, Written):
            part.maximum = True
    x, y = share(model, 0)
    forward = partial(parastrat.forward_backward, model, x, y, loss_fn=token_models.token_loss)
    return str(answers({"": forward})[""])


def copied(model: nn.Module) -> float:
    """How far a copy's output is from that of the model that it is of."""
    x, _ = share(model, 0)
    with torch.no_grad():
        before, after = model(x), copy.deepcopy(model)(x)
    return float((before - after).abs().max())


def losses_in_half() -> dict[str, list[float]]:
    fields = {**SEQUENCE, "precision": Precision.BF16_MIXED}
    return {name: trained(BUILDS[name], **fields)[0] for name in IN_HALF}


@pytest.fixture(scope="module")
def together() -> list[dict[Any, Any]]:
    return on_ranks(2, every_cell)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_ranks_train_what_one_process_does(together: list[dict[Any, Any]], name: str, kind: str) -> None:
    alone: Trained = token_models.alone(BUILDS[name])
    check([rank[name, kind] for rank in together], alone)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_attention_and_its_norms_are_divided(together: list[dict[Any, Any]], name: str) -> None:
    calls = together[0]["calls"][name].splitlines()
    (norms,) = (line for line in calls if line.startswith("# over mesh['tp'], norm over all"))
    assert "q_norm" in norms
    assert "k_norm" in norms
    assert any(", row: " in line and line.count("o") and "down" in line for line in calls)
    assert "# between them activations are divided along the sequence" in together[0]["calls"][name]
    assert "whole on every tp rank" not in together[0]["calls"][name]


@pytest.mark.slow
def test_fused_products_are_divided_by_numbers_of_the_config(together: list[dict[Any, Any]]) -> None:
    calls = together[0]["calls"]["fused"]
    assert "self_attn.qkv_proj" in calls
    assert "sizes divided inside of model.model.layers.*.self_attn" in calls
    assert "whole on every tp rank" not in calls


@pytest.mark.slow
def test_each_rank_has_a_share_of_a_norms_weights(together: list[dict[Any, Any]]) -> None:
    for rank in together:
        assert set(rank["shares"].values()) == {(WIDTH // 2,)}
        assert len(rank["shares"]) == 6


@pytest.mark.slow
def test_another_way_inside_of_a_norm_is_refused(together: list[dict[Any, Any]]) -> None:
    for rank in together:
        assert "inside of the norms of blocks.*.attention" in rank["changed"]
        assert "works along the features (AmaxBackward0)" in rank["changed"]


@pytest.mark.slow
def test_copies_count_this_ranks_heads_too(together: list[dict[Any, Any]]) -> None:
    assert [rank["copied"] for rank in together] == [0.0, 0.0]


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_HALF)
def test_half_precision_is_as_near_as_rounding(together: list[dict[Any, Any]], name: str) -> None:
    expected, _ = token_models.alone(BUILDS[name])
    for rank in together:
        assert rank["half"][name] == pytest.approx(expected, abs=0.02)


def test_a_norm_before_a_row_stays_whole_with_its_products() -> None:
    """A row of it could be the column of what follows, as that of queries from a latent."""
    found = layouts()["before the row"]
    roles = {name: part.role for name, part in found.parts.items()}
    assert roles["blocks.0.attention.q_norm"] is Role.NORM
    assert not any("mlp" in name for name in roles)
    assert any("normalised together" in left.reason for left in found.left if "mlp" in left.kind)


def test_norms_of_torch_are_followed() -> None:
    roles = {name: part.role for name, part in layouts()["rms"].parts.items()}
    assert roles["blocks.2.attention.k_norm"] is Role.NORM
    assert roles["blocks.2.mlp.down"] is Role.ROW


def test_a_config_that_counts_heads_is_the_one_it_stands_for() -> None:
    config: Any = phi3().config
    counting: Any = Counting(config, ["num_attention_heads"], 2)
    assert counting.num_attention_heads == config.num_attention_heads // 2
    config.hidden_act = "relu"
    assert counting.hidden_act == "relu"
    assert copy.deepcopy(counting).num_attention_heads == counting.num_attention_heads
    assert not hasattr(counting, "of_nothing")
