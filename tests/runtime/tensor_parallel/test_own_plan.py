"""What a model's own plan is read as, and what is made of it for a module's sizes."""

from __future__ import annotations

import pytest
import torch
from runtime.tensor_parallel.models import llama, phi3, qwen3, tied_llama
from torch import nn

from parastrat.runtime.tensor_parallel.layout import Layout, Role, kind_of
from parastrat.runtime.tensor_parallel.own_plan import own_layout
from parastrat.runtime.tensor_parallel.settle import settled
from parastrat.runtime.tensor_parallel.suggested import suggested_layout


def own(module: nn.Module, degree: int = 2) -> Layout:
    layout = own_layout(module)
    assert layout is not None
    return settled(layout, module, degree)


def roles(layout: Layout) -> dict[str, Role]:
    return {kind_of(name): part.role for name, part in layout.parts.items()}


def test_styles_become_roles() -> None:
    found = roles(own(qwen3()))
    attention = "model.layers.*.self_attn."
    assert found[f"{attention}q_proj"] is Role.COLUMN
    assert found[f"{attention}o_proj"] is Role.ROW
    assert found[f"{attention}q_norm"] is Role.SUMMED
    assert found["model.embed_tokens"] is Role.EMBEDDING
    assert found["lm_head"] is Role.COLUMN_GATHERED
    assert roles(own(phi3()))[f"{attention}o_proj"] is Role.ROW_OF_WHOLE


def test_every_layer_is_there() -> None:
    layout = own(llama(num_hidden_layers=11))
    assert len([group for group in layout.groups if group.kind == "model.layers.*.mlp"]) == 11
    assert "model.layers.10.mlp.up_proj" in layout.parts


def test_a_model_without_a_plan_has_no_layout() -> None:
    assert own_layout(nn.Sequential(nn.Linear(4, 4))) is None


def test_an_unknown_style_leaves_its_group_with_the_reason() -> None:
    module = llama()
    module.config.base_model_tp_plan = None
    module._tp_plan = {"model.layers.*.mlp.up_proj": "sideways", "model.layers.*.mlp.down_proj": "rowwise"}
    module.base_model._tp_plan = {}
    layout = own_layout(module)
    assert layout is not None
    assert layout.groups == ()
    assert [left.kind for left in layout.left] == ["model.layers.*.mlp"]
    assert "sideways for up_proj" in layout.left[0].reason


def test_sizes_that_do_not_divide_leave_their_group() -> None:
    layout = own(llama(vocab_size=61, intermediate_size=45))
    assert {group.kind for group in layout.groups} == {"model.layers.*.self_attn"}
    assert "45 features of model.layers.0.mlp.gate_proj do not divide by tp 2" in str(layout.left)
    assert "61 features of lm_head do not divide by tp 2" in str(layout.left)


@pytest.mark.parametrize("planned", ["lm_head", "model.embed_tokens"])
def test_tied_weights_are_divided_alike(planned: str) -> None:
    module = tied_llama()
    layout = own_layout(module)
    assert layout is not None
    some = Layout(groups=tuple(group for group in layout.groups if planned in group.parts))
    assert roles(settled(some, module, 2)) == {
        "model.embed_tokens": Role.EMBEDDING,
        "lm_head": Role.COLUMN_GATHERED,
    }


def test_a_weight_shared_with_what_stays_whole_stays_whole() -> None:
    module = llama()
    trunk = module.get_submodule("model")
    trunk.norm.other = trunk.get_submodule("layers.1.mlp.up_proj").weight
    layout = own(module)
    assert "model.layers.1.mlp.up_proj" not in layout.parts
    assert "model.layers.0.mlp.up_proj" in layout.parts
    assert "shares its weight with model.norm, which stays whole" in str(layout.left)


class Gathered(nn.Module):
    """Its plan gathers what its columns give; they could be divided up to the row, or not."""

    def __init__(self, *, compares: bool) -> None:
        super().__init__()
        self.tp_plan = {"blocks.*.up": "colwise_rep", "blocks.*.down": "rowwise_rep"}
        self.blocks = nn.ModuleList(_Block(compares=compares) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class _Block(nn.Module):
    def __init__(self, *, compares: bool) -> None:
        super().__init__()
        self.up, self.down, self.compares = nn.Linear(8, 16), nn.Linear(16, 8), compares

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(x)
        return x + self.down(wide.softmax(-1) if self.compares else wide.relu())


@pytest.mark.parametrize(
    ("compares", "role"), [(False, Role.COLUMN), (True, Role.COLUMN_GATHERED)], ids=["divided", "gathered"]
)
def test_what_a_plan_gathers_is_divided_where_it_can_be(compares: bool, role: Role) -> None:
    layout = suggested_layout(Gathered(compares=compares), torch.zeros(2, 3, 8))
    assert layout.parts["blocks.0.up"].role is role
