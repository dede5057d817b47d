"""Models with Mamba-2 layers on several ranks, and what the closed form says that those divide."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.models import plan, tokens
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor

import parastrat
from parastrat.runtime.blocks import repeated_blocks
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Precision

transformers = pytest.importorskip("transformers")

STEPS, SAMPLES, VOCAB = 3, 4, 61
SCANS = {"n_groups": 2, "conv_kernel": 4, "chunk_size": 4}
HYBRID = {
    "hidden_size": 32,
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "moe"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "vocab_size": VOCAB,
    "mamba_num_heads": 4,
    "mamba_head_dim": 8,
    "ssm_state_size": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "moe_shared_expert_intermediate_size": 24,
    **SCANS,
}
PURE = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "vocab_size": VOCAB,
    "num_heads": 8,
    "head_dim": 8,
    "state_size": 8,
    **SCANS,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, "use_cache": False}
KINDS = {"nemotron_h": HYBRID, "mamba2": PURE}


def built(kind: str) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.CONFIG_MAPPING[kind](**KINDS[kind], **TOKENS)
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return model


def is_divided(value: torch.Tensor) -> bool:
    return isinstance(value, DTensor) and any(placement.is_shard() for placement in value.placements)


def train(kind: str, ranks: int = 1, rank: int = 0, **axes: int) -> dict[str, Any]:
    """Take steps on a rank's share; return the losses, and which of a mixer's parameters are divided."""
    share = SAMPLES // ranks
    model = parastrat.auto_parallelize(built(kind), plan=plan(micro_batch_size=share, **axes))
    mixer = next(part for part in model.modules() if hasattr(part, "A_log"))
    divided = {name for name, value in mixer.named_parameters() if is_divided(value)}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(STEPS):
        x = tokens(step, SAMPLES)[0][rank * share : (rank + 1) * share]
        losses.append(parastrat.forward_backward(model, {"input_ids": x, "labels": x}).item())
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "divided": divided}


def on_two() -> dict[str, dict[str, Any]]:
    rank = int(os.environ["RANK"])
    found = {f"{kind} fsdp2": train(kind, 2, rank, dp_shard=2) for kind in KINDS}
    return found | {"nemotron_h tp": train("nemotron_h", tp=2)}


@pytest.fixture(scope="module")
def two() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = on_ranks(2, on_two)[0]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["nemotron_h fsdp2", "mamba2 fsdp2", "nemotron_h tp"])
def test_two_ranks_train_as_one_does(way: str, two: dict[str, dict[str, Any]]) -> None:
    alone = train(way.partition(" ")[0])["losses"]
    assert two[way]["losses"] == pytest.approx(alone, rel=1e-4)
    assert len(set(alone)) == STEPS


@pytest.mark.slow
def test_tensor_parallelism_leaves_scans_whole(two: dict[str, dict[str, Any]]) -> None:
    assert two["nemotron_h tp"]["divided"] == set()
    assert two["nemotron_h fsdp2"]["divided"]


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_the_blocks_that_are_found(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **KINDS[kind]}), encoding="utf-8")
    source = load_source(str(path))
    assert source is not None
    model = source.at(16, Precision.FP32, Kernels.EAGER)
    assert repeated_blocks(built(kind)).count == model.layers
    assert model.scans is not None
    assert not model.scans.divided
