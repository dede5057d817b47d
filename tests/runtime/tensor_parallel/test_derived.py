"""Layouts that are found by following the data."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from runtime.models import Gpt
from runtime.tensor_parallel.models import Perceptron, llama, qwen3
from runtime.training import bert, gpt2, vit
from torch import nn
from torch.utils._pytree import register_pytree_node

from parastrat.errors import WrapError
from parastrat.runtime.tensor_parallel.carrying import expanded
from parastrat.runtime.tensor_parallel.copies import Source, small_copies
from parastrat.runtime.tensor_parallel.derived import derived_layout
from parastrat.runtime.tensor_parallel.layout import Layout, Role, kind_of
from parastrat.runtime.tensor_parallel.own_plan import own_layout
from parastrat.runtime.tensor_parallel.same_way import hold_to
from parastrat.runtime.tensor_parallel.samples import batch_for
from parastrat.runtime.tensor_parallel.tags import NotFollowedError


def derived(module: nn.Module, inputs: object = None, degree: int = 2) -> Layout:
    source = Source(module=module, sample_inputs=inputs, record=None, device=torch.device("cpu"))
    few = next(small_copies(source, degree))
    return expanded(derived_layout(few, batch_for(source, few, degree), degree), module)


def roles(layout: Layout) -> dict[str, str]:
    return {kind_of(name): part.role.value for name, part in layout.parts.items()}


def left(layout: Layout) -> dict[str, str]:
    return {each.kind: each.reason for each in layout.left}


def test_a_llama_gets_what_its_own_plan_says() -> None:
    own = own_layout(llama())
    assert own is not None
    assert roles(derived(llama())) == roles(own)


def test_every_layer_is_covered() -> None:
    layout = derived(llama(num_hidden_layers=5))
    assert sum(name.endswith("o_proj") for name in layout.parts) == 5


def test_norms_of_heads_are_summed() -> None:
    assert roles(derived(qwen3()))["model.layers.*.self_attn.q_norm"] == Role.SUMMED.value


def test_fused_projections_are_divided_stretch_by_stretch() -> None:
    (qkv,) = [part for name, part in derived(gpt2()).parts.items() if name == "transformer.h.0.attn.c_attn"]
    assert qkv.segments == (32, 32, 32)
    (gpt,) = [part for name, part in derived(Gpt()).parts.items() if name == "layers.0.qkv"]
    assert gpt.segments == (32, 32, 32)


def test_sizes_beside_the_layers_are_known() -> None:
    sizes = {path: names for group in derived(gpt2()).groups for path, names in group.sizes.items()}
    assert set(sizes["transformer.h.0.attn"]) >= {"num_heads", "split_size"}
    assert "head_dim" not in sizes["transformer.h.0.attn"]


def test_other_families() -> None:
    assert roles(derived(bert()))["bert.encoder.layer.*.attention.output.dense"] == Role.ROW.value
    assert roles(derived(vit()))["vit.layers.*.mlp.fc2"] == Role.ROW.value


def test_both_halves_of_an_encoder_decoder() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    tokens = torch.randint(64, (2, 8))
    inputs = {"input_ids": tokens, "decoder_input_ids": tokens}
    layout = derived(T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)), inputs)
    found = roles(layout)
    for half in ("encoder", "decoder"):
        assert found[f"{half}.block.*.layer.*.DenseReluDense.wo"] == Role.ROW.value
    # in an order that does not depend on how a process hashes strings: ranks compare what they found
    alike = {
        reason: [each.kind for each in layout.left if each.reason == reason]
        for reason in left(layout).values()
    }
    assert max(map(len, alike.values())) >= 3
    assert all(kinds == sorted(kinds) for kinds in alike.values())


def test_a_plain_module() -> None:
    layout = derived(Perceptron(), torch.zeros(2, 8))
    assert roles(layout) == {"first": "column", "gate": "column", "second": "row"}
    assert left(layout) == {"last": "its output is the model's"}


def test_the_larger_of_two_is_taken_element_by_element() -> None:
    """As eager attention of XGLM keeps its scores above the least number: max of two tensors."""

    class Floored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.down(torch.max(self.up(x), torch.tensor(0.0))))

    assert roles(derived(Floored(), torch.zeros(2, 8))) == {"up": "column", "down": "row"}


def test_what_is_joined_to_nothing_stays_divided() -> None:
    """As the first keys of a cache are, in models with attention of their own (XLM)."""

    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.down(torch.cat([torch.zeros(0), self.up(x)], dim=1)))

    assert roles(derived(Cached(), torch.zeros(2, 3, 8))) == {"up": "column", "down": "row"}


class Told(OrderedDict[str, torch.Tensor]):
    """An output that torch's trees take apart, but not by name: diffusers registers its own so."""


register_pytree_node(
    Told,
    lambda told: (list(told.values()), list(told)),
    lambda values, names: Told(zip(names, values, strict=True)),
)


def test_parts_may_return_what_has_no_paths() -> None:
    class Telling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> Told:
            return Told(sample=self.down(self.up(x).relu()))

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Telling()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)["sample"]

    assert roles(derived(Around(), torch.zeros(2, 8))) == {"inner.up": "column", "inner.down": "row"}


def test_too_few_heads_stay_whole_with_the_reason() -> None:
    layout = derived(llama(num_key_value_heads=1))
    assert not any("self_attn" in name for name in layout.parts)
    assert any("model.layers.*.self_attn" in kind for kind in left(layout))


def test_a_residual_around_one_layer_is_no_pair() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x + self.only(x))

    layout = derived(Around(), torch.zeros(2, 8))
    assert layout.groups == ()
    assert "which is whole" in left(layout)["only"]


def test_what_export_does_not_take_is_said() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.only(torch.from_numpy(x.numpy() + 1))

    with pytest.raises(NotFollowedError, match=r"torch\.export does not follow this model"):
        derived(Odd(), torch.ones(2, 8))


class Choosing(nn.Module):
    """Reads a value before, between or behind a column and its row, as DETR's layers do to clamp."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.up, self.down, self.where = nn.Linear(8, 32), nn.Linear(32, 8), where

    def forward(self, x: torch.Tensor, *, squashes: bool = False) -> torch.Tensor:
        squashes = squashes or (self.where == "before" and bool(x.mean() > 1))
        wide = self.up(x).relu()
        if squashes or (self.where == "between" and bool(x.mean() > 1)):
            wide = wide.softmax(-1)
        x = x + self.down(wide)
        return x.clamp(-1, 1) if self.where == "behind" and bool(x.mean() > 1) else x


class Handing(nn.Module):
    """Reads a value before it calls one, and hands it on."""

    def __init__(self, kind: type) -> None:
        super().__init__()
        self.inner, self.kind = Choosing("nowhere"), kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x, squashes=self.kind(x.mean() > 1))


class Reading(nn.Module):
    """Reads a value, and returns it with a tensor, or not."""

    def __init__(self, *, tells: bool) -> None:
        super().__init__()
        self.tells = tells

    def forward(self, x: torch.Tensor) -> object:
        large = bool(x.mean() > 1)
        x = x * 2 if large else x
        return (x, large) if self.tells else (x, None)


class Behind(nn.Module):
    """Column and row behind what reads a value, as in Longformer's layers."""

    def __init__(self, *, tells: bool) -> None:
        super().__init__()
        self.reading, self.up, self.down = Reading(tells=tells), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, large = self.reading(x)
        wide = self.up(x).relu()
        return self.down(wide.softmax(-1) if large else wide)


class Sometimes(nn.Module):
    """A column whose share another way gives to a layer that the sample never sees."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.downs = nn.Linear(8, 32), nn.ModuleList(nn.Linear(32, 8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place, down in enumerate(self.downs):
            rows = (x.mean(-1) > place).nonzero()[:, 0]
            if len(rows):
                x = x.index_add(0, rows, down(self.up(x[rows])))
        return x


UP_AND_DOWN = {"up": "column", "down": "row"}


def test_what_runs_alike_on_all_ways_of_a_forward_is_divided() -> None:
    assert roles(derived(Choosing("behind"), torch.ones(2, 8))) == UP_AND_DOWN
    assert roles(derived(Behind(tells=False), torch.ones(2, 8))) == UP_AND_DOWN
    layout = derived(Handing(bool), torch.ones(2, 8))
    (group,) = layout.groups
    assert group.given == {"inner": (((("[1]['squashes']", "False"),)),)}
    model = Handing(bool)
    hold_to(model, layout)
    model(torch.ones(2, 8))
    with pytest.raises(WrapError, match=r"other flags than it was followed with .*'squashes'. = True"):
        model(2 * torch.ones(2, 8))


def test_each_layer_is_held_once() -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Choosing("nowhere") for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            large = bool(x.mean() > 1)
            for layer in self.layers:
                x = layer(x, squashes=large)
            return x

    model = Several()
    layout = derived(model, torch.ones(2, 8))
    assert len(layout.groups) == 3
    hold_to(model, layout)
    assert [len(layer._forward_pre_hooks) for layer in model.layers] == [1, 1, 1]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Choosing("before"), "before its output is divided"),
        (Choosing("between"), "while its output is divided"),
        (Behind(tells=True), "before its output is divided"),
        (Handing(int), "gives inner numbers"),
        (Sometimes(), "before its output is divided"),
    ],
)
def test_what_another_way_may_take_elsewhere_stays_whole(module: nn.Module, reason: str) -> None:
    layout = derived(module, torch.ones(2, 8))
    assert layout.groups == ()
    assert any(reason in each for each in left(layout).values())


def test_sizes_that_hang_on_the_data_are_not_followed() -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x[x.sum(-1) > 0])))

    with pytest.raises(NotFollowedError, match="hangs on the data"):
        derived(Choosing(), torch.ones(2, 8))


def test_a_layer_may_read_a_parameter() -> None:
    class Placed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places = nn.Parameter(torch.randn(4, 8))
            self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.key(x) * self.key(self.places))

    assert roles(derived(Placed(), torch.ones(2, 4, 8))) == {"key": "column", "out": "row"}


class Valued(nn.Module):
    """Predicts one number, and leaves what it computed on the way in the module."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.value = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden = self.second(torch.relu(self.first(x)))
        return self.value(self.hidden).squeeze(-1)


# what torch.export says of such forwards
_LEFT = pytest.mark.filterwarnings("ignore:The tensor attribute self.hidden was assigned:UserWarning")


@_LEFT
def test_a_layer_with_one_feature_stays_whole() -> None:
    layout = derived(Valued(), torch.ones(2, 8))
    assert roles(layout) == {"first": "column", "second": "row"}
    assert left(layout) == {"value": "it has one feature"}


@_LEFT
def test_nothing_of_a_forward_stays_in_what_is_followed() -> None:
    # what a proof divides are copies of it
    module = Valued()
    derived_layout(module, torch.ones(2, 8), 2)
    assert not hasattr(module, "hidden")


def falcon(**fields: object) -> nn.Module:
    from transformers import FalconConfig, FalconForCausalLM

    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 8}
    return FalconForCausalLM(FalconConfig(**shape, multi_query=True, bias=False, **fields))


def test_heads_that_are_picked_within_each_group_stay_with_it() -> None:
    # one product for a group's queries, its key and its value, taken apart by lists of places
    attention = "transformer.h.*.self_attention"
    found = roles(derived(falcon(new_decoder_architecture=True, num_kv_heads=4)))
    assert found[f"{attention}.query_key_value"] == Role.COLUMN.value
    assert found[f"{attention}.dense"] == Role.ROW.value
    # one key for all queries would be on one rank alone
    one = derived(falcon(new_decoder_architecture=False))
    assert f"{attention}.query_key_value" not in roles(one)
