"""litgpt: a model of each family of its configs, of three narrow layers."""

from __future__ import annotations

import functools
import re
from typing import Any

import litgpt
import torch
from litgpt.config import name_to_config
from torch import nn

from libraries.member import Member, ids, without_dropout

_LENGTH, _VOCAB = 64, 1000


def names() -> list[str]:
    families: dict[str, str] = {}
    for name in name_to_config:
        families.setdefault(re.split(r"[-_.\d]", name.lower())[0], name)
    return list(families.values())


def members(name: str) -> list[Member]:
    return [Member(build=functools.partial(_built, name), inputs=_tokens)]


def _tokens(samples: int) -> torch.Tensor:
    return ids(samples, _LENGTH, _VOCAB)


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    own = name_to_config[name]
    groups = own.get("n_query_groups")
    heads = own.get("n_head", 32)
    sizes: dict[str, Any] = {
        "n_layer": 3,
        "n_embd": 128,
        "n_head": 4,
        "n_query_groups": 4 if groups in {None, heads} else 1 if groups == 1 else 2,
        "head_size": 32,
        "intermediate_size": 256,
        "block_size": _LENGTH,
        "padded_vocab_size": _VOCAB,
    }
    if own.get("moe_intermediate_size"):
        sizes["moe_intermediate_size"] = 64
    if own.get("sliding_window_indices"):
        sizes["sliding_window_indices"] = own["sliding_window_indices"][:3]
    if own.get("rope_indices"):
        sizes["rope_indices"] = own["rope_indices"][:3]
    if own.get("n_expert"):
        sizes["n_expert"], sizes["n_expert_per_token"] = 4, 2
    module: nn.Module = litgpt.GPT(litgpt.Config.from_name(name, **sizes))
    return without_dropout(module)
