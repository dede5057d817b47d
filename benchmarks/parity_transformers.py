"""Every model class of the installed transformers that can be built small and called: nobody chose them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from parity_models import Batch, Subject
from torch import nn
from torch.utils._pytree import tree_leaves

#: auto classes whose models are taken; a class counts once
_TASKS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
STEPS = 5
VOCAB, LENGTH, SIDE = 128, 16, 32
#: sizes of configs, and what they become; lists keep their length, which other fields may follow
_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "model_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"), 2),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim"), 16),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "mlp_dim", "moe_intermediate_size"), 96),
    **dict.fromkeys(("vocab_size", "text_vocab_size"), VOCAB),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk"), 2),
    "word_embed_proj_dim": 64,
    "embedding_size": 64,
    "image_size": SIDE,
    "patch_size": 8,
    "n_group": 1,
    "topk_group": 1,
}
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id")


def names() -> list[str]:
    """Return the classes, by the tasks that name them."""
    return list(_configs())


@functools.cache
def _configs() -> dict[str, str]:
    """Return each model class with the class of its config."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - only where it is asked for
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES  # noqa: PLC0415

    found: dict[str, str] = {}
    taken: set[str] = set()
    for task in _TASKS:
        for family, stated in getattr(modeling_auto, task).items():
            model = stated if isinstance(stated, str) else stated[0]
            # the trunk of a family that was taken with a head is the same model once more
            trunk_again = task == "MODEL_MAPPING_NAMES" and family in taken
            if family in CONFIG_MAPPING_NAMES and not trunk_again:
                found.setdefault(model, CONFIG_MAPPING_NAMES[family])
                taken.add(family)
    return found


def subject(name: str) -> Subject:
    """Return a class as a subject; building or calling it may raise anything."""
    return Subject(
        name=name,
        build=lambda: _built(name),
        batch=functools.partial(_batch, _accepted(name)),
        loss_fn=_loss,
        steps=STEPS,
    )


def _built(name: str) -> nn.Module:
    import transformers  # noqa: PLC0415 - only where it is asked for

    config_class = getattr(transformers, _configs()[name])
    module: nn.Module = getattr(transformers, name)(_shrunk(config_class()))
    if hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return module


def _shrunk(config: Any) -> Any:
    """Return a config with small sizes, its parts too; dropout and special tokens beyond them off."""
    for field, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            _shrunk(value)
        elif field in _SMALL and isinstance(value, int) and not isinstance(value, bool):
            setattr(config, field, _SMALL[field])
        elif field in _TOKENS and isinstance(value, int):
            setattr(config, field, min(value, VOCAB - 1))
        elif "drop" in field and isinstance(value, float):
            setattr(config, field, 0.0)
        elif field == "layer_types" and isinstance(value, list):
            config.layer_types = value[: _SMALL["num_hidden_layers"]]
    return config


@functools.cache
def _accepted(name: str) -> frozenset[str]:
    import transformers  # noqa: PLC0415 - only where it is asked for

    return frozenset(inspect.signature(getattr(transformers, name).forward).parameters)


def _batch(accepted: frozenset[str], step: int, samples: int) -> Batch:
    draw = torch.Generator().manual_seed(step)
    inputs = {}
    if "input_ids" in accepted:
        inputs["input_ids"] = torch.randint(2, VOCAB, (samples, LENGTH), generator=draw)
    elif "pixel_values" in accepted:
        inputs["pixel_values"] = torch.randn(samples, 3, SIDE, SIDE, generator=draw)
    if "decoder_input_ids" in accepted and "input_ids" in inputs:
        inputs["decoder_input_ids"] = torch.randint(2, VOCAB, (samples, LENGTH), generator=draw)
    return inputs, torch.rand(samples, generator=draw) + 0.5


def _loss(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return a mean over samples of what the output's first tensor is worth, whatever it means.

    Waves of weights: a norm at the end fixes the sum of squares, and a softmax the sum.
    """
    leaf = next(
        leaf for leaf in tree_leaves(dict(output)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    )
    values = leaf.float().flatten(1)
    waves = torch.arange(values.shape[1], device=values.device).sin()
    return ((values * waves).mean(1) * targets).mean()
