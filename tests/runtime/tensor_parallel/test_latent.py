"""Attention whose heads share what comes of one whole layer, divided over tp: as on one device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from drawn import drawn, drawn_of
from runtime import token_models
from runtime.ranks import on_ranks
from runtime.tensor_parallel.nets import SEQUENCE, WIDTH, Logits, Net
from runtime.token_models import calls_of, check, trained, wrapped
from torch import nn
from torch.nn import functional

from parastrat.plan import Recompute
from parastrat.runtime.tensor_parallel.derived import derived_layout
from parastrat.runtime.tensor_parallel.layout import Layout, Role

HEADS, HEAD, RANK = 4, 8, 12


class Latent(nn.Module):
    """Keys and values of a latent, and a stretch of keys that all heads share.

    Args:
        queries: those come of a latent too.
        leaks: what all heads share goes on beside attention.
    """

    def __init__(self, *, queries: bool = False, leaks: bool = False) -> None:
        super().__init__()
        self.leaks = leaks
        self.q_a = nn.Linear(WIDTH, RANK) if queries else nn.Identity()
        self.q_norm = nn.RMSNorm(RANK) if queries else nn.Identity()
        self.q = nn.Linear(RANK if queries else WIDTH, 2 * HEADS * HEAD)
        self.kv_a, self.kv_norm = nn.Linear(WIDTH, RANK + HEAD), nn.LayerNorm(RANK)
        self.kv, self.out = nn.Linear(RANK, 2 * HEADS * HEAD), nn.Linear(HEADS * HEAD, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(self.q_norm(self.q_a(x))).unflatten(-1, (-1, 2 * HEAD)).transpose(1, 2)
        latent, shared = self.kv_a(x).split((RANK, HEAD), -1)
        kv = self.kv(self.kv_norm(latent)).unflatten(-1, (-1, 2 * HEAD)).transpose(1, 2)
        k, v = kv.chunk(2, -1)
        k = torch.cat((k, shared.unsqueeze(1).tanh().expand(-1, k.shape[1], -1, -1)), -1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return found + functional.pad(shared, (0, WIDTH - HEAD)) if self.leaks else found


class Block(nn.Module):
    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = attention()
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(functional.silu(self.up(self.between(x))))


def net(**fields: bool) -> nn.Module:
    return Net(lambda: Block(partial(Latent, **fields)))


SHAPE: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "v_head_dim": 8,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}


def deepseek_v3() -> nn.Module:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(**SHAPE, q_lora_rank=16, n_group=2, topk_group=1)
    return Logits(DeepseekV3ForCausalLM(config))


def deepseek_v2() -> nn.Module:
    """Turns queries and keys as complex numbers; its queries have no latent."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    return Logits(DeepseekV2ForCausalLM(DeepseekV2Config(**SHAPE, q_lora_rank=None)))


BUILDS: dict[str, Callable[[], nn.Module]] = {
    "keys": net,
    "queries too": partial(net, queries=True),
    "leaking": partial(net, queries=True, leaks=True),
    "deepseek v2": deepseek_v2,
    "deepseek v3": deepseek_v3,
}
_ALL: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, "sequence"): SEQUENCE for name in BUILDS},
    **{(name, "whole"): {"tp": 2} for name in ("keys", "leaking", "deepseek v3")},
    ("queries too", "recomputed"): {**SEQUENCE, "recompute": Recompute.FULL},
}
CELLS = drawn_of(_ALL, 3)
#: models of which it is seen how they are divided
TOLD = drawn([name for name in BUILDS if name != "leaking"], 2)


def every_cell() -> dict[Any, Any]:
    found: dict[Any, Any] = {key: trained(BUILDS[key[0]], **fields) for key, fields in CELLS.items()}
    found["calls"] = {name: calls_of(wrapped(BUILDS[name], **SEQUENCE)) for name in (*TOLD, "leaking")}
    return found


@pytest.fixture(scope="module")
def together() -> list[dict[Any, Any]]:
    return on_ranks(2, every_cell)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_ranks_train_what_one_process_does(together: list[dict[Any, Any]], name: str, kind: str) -> None:
    check([rank[name, kind] for rank in together], token_models.alone(BUILDS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", TOLD)
def test_all_of_it_is_divided(together: list[dict[Any, Any]], name: str) -> None:
    calls = together[0]["calls"][name]
    assert "# over mesh['tp'], whole, for shares of the heads: " in calls
    assert "# between them activations are divided along the sequence" in calls
    assert "whole on every tp rank" not in calls


@pytest.mark.slow
def test_what_goes_on_beside_attention_leaves_it_whole(together: list[dict[Any, Any]]) -> None:
    calls = together[0]["calls"]["leaking"]
    assert "for shares of the heads" not in calls
    assert "column: blocks.*.up" in calls


def derived(**fields: bool) -> Layout:
    return derived_layout(net(**fields), torch.zeros(2, 16, dtype=torch.long), 2)


def test_a_layer_of_the_same_input_begins_the_region_too() -> None:
    parts = derived(queries=True).parts
    whole = {name for name, part in parts.items() if part.role is Role.LATENT}
    assert whole == {f"blocks.{block}.attention.{name}" for block in range(3) for name in ("q_a", "kv_a")}
    assert parts["blocks.0.attention.q"].inner
    assert parts["blocks.0.attention.q_norm"].role is Role.SUMMED
    assert not parts["blocks.0.up"].inner


def test_columns_that_read_the_input_itself_enter_there() -> None:
    parts = derived().parts
    assert not parts["blocks.0.attention.q"].inner
    assert parts["blocks.0.attention.kv"].inner
    assert parts["blocks.0.attention.kv_a"].role is Role.LATENT
