"""How a class of transformers that nobody chose is made small, and what it is called with: by trying."""

from __future__ import annotations

import functools
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from parity_inputs import VOCAB
from parity_models import GRADIENT_TOLERANCE, LOSS_TOLERANCE, difference, widened
from torch import nn
from torch.utils._pytree import tree_leaves

from parastrat.runtime.tensor_parallel.computed import move_the_last_bit

#: eight ranks hold a copy each
LARGEST = 30_000_000
#: parameters of a class with widths or a vocabulary of its own; two ranks hold it, and optimizer states
LARGEST_OF_OWN = 120_000_000
#: processor time of forward and backward
SLOWEST_S = 3
_WIDTH, _HEADS, _LAYERS, _EXPERTS = 64, 4, 2, 4
_DEEP = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"), _LAYERS),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers", "depth"), _LAYERS),
    **dict.fromkeys(("vocab_size", "text_vocab_size"), VOCAB),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), _EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    "n_group": 1,
    "topk_group": 1,
    # of two layers none can take the keys of an earlier one of its kind
    "num_kv_shared_layers": 0,
}
#: sizes of configs, and what they become; lists keep their length, which other fields may follow
_WIDE = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "model_dim"), _WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim"), _WIDTH // _HEADS),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "moe_intermediate_size"), 96),
    "word_embed_proj_dim": _WIDTH,
    "embedding_size": _WIDTH,
    "image_size": 32,
    "patch_size": 8,
}
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id")
#: what fields that hold a width have in their names; dividing all of them keeps their ratios
_WIDTHS = (
    "size",
    "dim",
    "channel",
    "d_model",
    "d_ff",
    "d_kv",
    "rank",
    "section",
    "filters",
    "embd",
    "inner",
)
#: fields that say how often a block is repeated
_MANY = re.compile(r"(layers|blocks|depths?|attends_per_block)$")
_NO_WIDTHS = ("image", "patch", "vocab", "kernel", "window", "chunk", "batch", "group", "num_", "conv_")
#: some models take None for these, others do not
_NEEDED = ("head_dim", "num_key_value_heads", "vocab_size")
#: off, as they draw
_RANDOM = ("drop", "mask_time_prob", "mask_feature_prob", "jitter", "noise_std")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A way to shrink a config, and the inputs of the call."""

    shrink: str
    inputs: tuple[str, ...]
    #: in evaluation mode, as it draws, or asks for more, in training
    evaluated: bool = False


def _fixed(field: str, value: Any, sizes: dict[str, int]) -> Any:
    missing = value is None and field in _NEEDED
    return sizes[field] if field in sizes and (missing or isinstance(value, int)) else value


def _to_fixed_sizes(field: str, value: Any) -> Any:
    return _fixed(field, value, _DEEP | _WIDE)


def _to_a_part(divisor: int, field: str, value: Any) -> Any:
    if field in _DEEP:
        return _fixed(field, value, _DEEP)
    named = any(part in field for part in _WIDTHS) and not any(part in field for part in _NO_WIDTHS)
    return _divided(value, divisor) if named else value


def _to_two_layers(field: str, value: Any) -> Any:
    return _fixed(field, value, _DEEP)


def _to_names(field: str, value: Any) -> Any:
    """By what names have in common: fields of parts that no list of fields knows."""
    if isinstance(value, list | tuple) and _MANY.search(field):
        return type(value)(min(part, 1) if isinstance(part, int) else part for part in value)
    if isinstance(value, int) and not isinstance(value, bool) and field not in _DEEP | _WIDE:
        if _MANY.search(field):
            return min(value, _LAYERS)
        if "vocab" in field:
            return min(value, VOCAB)
        if field == "num_filters":
            return _divided(value, 8)
        if field.endswith(("hidden_size", "hidden_dim")):
            return _WIDTH
    return _fixed(field, value, _DEEP | _WIDE) if field in _DEEP | _WIDE else _to_a_part(8, field, value)


def _to_own(divisor: int, field: str, value: Any) -> Any:
    """Two layers of a part of the widths, with the whole vocabulary."""
    if isinstance(value, list | tuple) and _MANY.search(field):
        return type(value)(min(part, 1) if isinstance(part, int) else part for part in value)
    if field in _DEEP and not any(part in field for part in ("vocab", "position")):
        return _fixed(field, value, _DEEP)
    return value if divisor == 1 or field in _DEEP else _to_a_part(divisor, field, value)


def _not(field: str, value: Any) -> Any:  # noqa: ARG001 - as the others
    return value


#: tried in this order
SHRINKS: dict[str, Callable[[str, Any], Any]] = {
    "fixed": _to_fixed_sizes,
    "eighth": functools.partial(_to_a_part, 8),
    "thirty-second": functools.partial(_to_a_part, 32),
    "names": _to_names,
    "layers": _to_two_layers,
    "whole": _not,
}
#: with the vocabulary of the class, and as much of its widths as may be tried
OWN_SHRINKS: dict[str, Callable[[str, Any], Any]] = {
    "own": functools.partial(_not),
    **{f"own 1/{divisor}": functools.partial(_to_own, divisor) for divisor in (1, 2, 4, 8)},
}


def _divided(value: Any, divisor: int) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_divided(part, divisor) for part in value)
    is_width = isinstance(value, int) and not isinstance(value, bool) and value >= divisor
    return value // divisor if is_width and value % divisor == 0 else value


def _small(field: str, value: Any, shrink: Callable[[str, Any], Any]) -> Any:
    if field in _TOKENS and isinstance(value, int):
        return value if shrink in OWN_SHRINKS.values() else min(value, VOCAB - 1)
    if any(part in field for part in _RANDOM) and isinstance(value, float):
        return 0.0
    if isinstance(value, dict):
        return {key: shrink(str(key), part) for key, part in value.items()}
    if isinstance(value, bool):
        return value and field != "apply_spec_augment"
    return shrink(field, value)


def shrunk(config: Any, shrink: Callable[[str, Any], Any]) -> Any:
    """Return a config with small sizes, its parts too; what draws is off, special tokens are in range."""
    for field, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            setattr(config, field, shrunk(_without_timm(value), shrink))
        else:
            setattr(config, field, _small(field, value, shrink))
    layers = getattr(config, "num_hidden_layers", None)
    for field in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = getattr(config, field, None)
        if isinstance(kinds, list) and layers and len(kinds) > layers:
            # the last ones: a hybrid of state spaces is one only with the kind that comes late
            setattr(config, field, kinds[-layers:])
    if getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # heads over sequences want one; no batch has it
    for rope in ("rope_parameters", "rope_scaling"):
        _fit_sections(getattr(config, rope, None), config)
    return config


def _without_timm(part: Any) -> Any:
    """Return a backbone of timm's, which is not installed, as a ResNet with as many outputs."""
    if getattr(part, "model_type", "") != "timm_backbone":
        return part
    from transformers import ResNetConfig  # noqa: PLC0415 - only where it is asked for

    return ResNetConfig(out_indices=list(part.out_indices or [4]))


def _fit_sections(rope: Any, config: Any) -> None:
    """Give the axes of a position (time, height, width) their shares of a head that has become smaller."""
    if not isinstance(rope, dict):
        return
    for part in rope.values():
        _fit_sections(part, config)
    heads = getattr(config, "num_attention_heads", None)
    hidden = getattr(config, "hidden_size", None)
    if "rope_type" not in rope or not heads or not hidden:
        return
    # some models have their shares in their code, for a head as wide as theirs; others read none
    sections = rope.get("mrope_section") or (2, 3, 3)
    # of the fields that a config may keep by layer this is the one that some refuse to give
    width = vars(config).get("head_dim") or hidden // heads
    pairs = int(width * rope.get("partial_rotary_factor", 1.0)) // 2
    shares = [max(1, pairs * section // sum(sections)) for section in sections]
    rope["mrope_section"] = [shares[0] + pairs - sum(shares), *shares[1:]]


def loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return a mean over samples of what the output's first tensor is worth, whatever it means.

    Waves of weights: a norm at the end fixes the sum of squares, and a softmax the sum.
    """
    leaves = tree_leaves(dict(output) if hasattr(output, "items") else output)
    leaf = next(leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad)
    if leaf.shape[:1] != targets.shape:
        raise ValueError(f"the output's first tensor, {tuple(leaf.shape)}, is not one of samples")
    values = widened(leaf).flatten(1)
    waves = torch.arange(values.shape[1], device=values.device).sin()
    return ((values * waves).mean(1) * targets).mean()


def called(module: nn.Module, inputs: Any) -> Any:
    """Return what a module gives for a dict of keywords, a tuple of arguments, or its one argument."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def trial(module: nn.Module, inputs: Any, targets: torch.Tensor) -> str:
    """Return why a module cannot be compared with itself elsewhere, or an empty text."""
    begun = time.process_time()
    first, gradients = _step(module, inputs, targets)
    if time.process_time() - begun > SLOWEST_S:
        return f"two samples take longer than {SLOWEST_S} s"
    if not math.isfinite(first):
        return "its loss is not finite on one device"
    norms = {name: float(gradient.abs().max()) for name, gradient in gradients.items() if gradient.numel()}
    if not all(math.isfinite(norm) for norm in norms.values()):
        return "its gradients are not finite on one device"
    if not any(norms.values()):
        return "its gradients are zero"
    if _step(module, inputs, targets)[0] != first:
        return "it draws, or keeps a state: two calls differ"
    move_the_last_bit(module)
    loss_beside, beside = _step(module, inputs, targets)
    moved = max(difference(beside[name], gradients[name], max(norms.values())) for name in norms)
    if abs(loss_beside - first) > LOSS_TOLERANCE or moved > GRADIENT_TOLERANCE:
        return "the last bit of its weights moves its loss or its gradients by more than is allowed"
    return ""


def _step(
    module: nn.Module, inputs: dict[str, Any], targets: torch.Tensor
) -> tuple[float, dict[str, torch.Tensor]]:
    module.zero_grad()
    found = loss(called(module, inputs), targets)
    found.backward()
    return found.item(), {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
