"""x_transformers: a decoder with each of its switches, an encoder and decoder, images and sound."""

from __future__ import annotations

import functools
from typing import Any

import torch
import x_transformers
from torch import nn

from libraries.member import Member, drawn, ids, without_dropout

_VOCAB, _LENGTH = 1000, 64
_SWITCHES: dict[str, dict[str, Any]] = {
    "plain": {},
    "flash": {"attn_flash": True},
    "rotary": {"rotary_pos_emb": True},
    "ALiBi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "T5 biases": {"rel_pos_bias": True},
    "dynamic biases": {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False},
    "RMSNorm and SwiGLU": {"use_rmsnorm": True, "ff_glu": True, "ff_swish": True, "ff_no_bias": True},
    "squared ReLU": {"ff_relu_squared": True},
    "one head of keys": {"attn_one_kv_head": True},
    "grouped queries": {"attn_kv_heads": 2},
    "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "gated": {"attn_gate_values": True, "attn_gate_value_heads": True},
    "norms of queries": {"attn_qk_norm": True, "attn_qk_norm_dim_scale": True},
    "sandwich": {"sandwich_norm": True},
    "residual attention": {"residual_attn": True},
    "gated residuals": {"gate_residual": True},
    "shifted tokens": {"shift_tokens": 1},
    "memories": {"attn_num_mem_kv": 8},
    "macaron": {"macaron": True},
    "hyper connections": {"num_residual_streams": 2},
    "sparse attention": {"attn_sparse_topk": 8},
    "value residual": {"add_value_residual": True, "learned_value_residual_mix": True},
    "weights shared": {"weight_tie_layers": True},
}


def names() -> list[str]:
    return [*_SWITCHES, "encoder and decoder", "images", "continuous", "own loss", "encoder"]


def members(name: str) -> list[Member]:
    return [Member(build=functools.partial(_built, name), inputs=functools.partial(_inputs, name))]


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return without_dropout(_OTHERS[name]() if name in _OTHERS else _decoder(**_SWITCHES[name]))


def _decoder(**switches: Any) -> nn.Module:
    layers = x_transformers.Decoder(dim=128, depth=3, heads=4, attn_dim_head=32, **switches)
    made: nn.Module = x_transformers.TransformerWrapper(
        num_tokens=_VOCAB, max_seq_len=_LENGTH, attn_layers=layers
    )
    return made


def _encoder() -> nn.Module:
    layers = x_transformers.Encoder(dim=128, depth=3, heads=4, attn_dim_head=32)
    made: nn.Module = x_transformers.TransformerWrapper(
        num_tokens=_VOCAB, max_seq_len=_LENGTH, num_memory_tokens=4, attn_layers=layers
    )
    return made


def _both() -> nn.Module:
    sizes = {"depth": 2, "heads": 4, "attn_dim_head": 32, "max_seq_len": _LENGTH, "num_tokens": _VOCAB}
    made: nn.Module = x_transformers.XTransformer(
        dim=128, **{f"{side}_{name}": size for side in ("enc", "dec") for name, size in sizes.items()}
    )
    return made


def _image() -> nn.Module:
    layers = x_transformers.Encoder(dim=128, depth=3, heads=4, attn_dim_head=32)
    made: nn.Module = x_transformers.ViTransformerWrapper(
        image_size=64, patch_size=8, num_classes=10, attn_layers=layers
    )
    return made


def _continuous() -> nn.Module:
    layers = x_transformers.Decoder(dim=128, depth=3, heads=4, attn_dim_head=32)
    made: nn.Module = x_transformers.ContinuousTransformerWrapper(
        dim_in=32, dim_out=32, max_seq_len=_LENGTH, attn_layers=layers
    )
    return made


_OTHERS = {
    "encoder and decoder": _both,
    "images": _image,
    "continuous": _continuous,
    "encoder": _encoder,
    "own loss": lambda: x_transformers.AutoregressiveWrapper(_decoder()),
}


def _inputs(name: str, samples: int) -> Any:
    if name == "images":
        return drawn(samples, 3, 64, 64)
    if name == "continuous":
        return drawn(samples, _LENGTH, 32)
    tokens = ids(samples, _LENGTH, _VOCAB)
    return (tokens, tokens.clone()) if name == "encoder and decoder" else tokens
