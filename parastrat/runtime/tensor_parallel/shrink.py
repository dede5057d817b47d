"""A Hugging Face model of the same structure with small sizes: as many heads, fewer features of each."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from parastrat.runtime.tensor_parallel.layout import kind_of

#: copies with more parameters than this are built anew with small sizes
LARGE = 30_000_000
#: features of a head, and rows or features for every rank
HEAD, SHARE = 8, 32
#: blocks that the small model has at most; enough for patterns of kinds of layers
BLOCKS = 6

#: names of sizes; a family has one of each line, or none
_HIDDEN = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_size")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads")
_HEAD_DIMS = ("head_dim", "d_kv", "kv_channels")
#: of attention from a latent: what is turned by positions, what is not, and values; a query has both first
_LATENT_DIMS = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_LATENT_QUERY = "qk_head_dim"
#: features of a head that are turned by positions
_TURNED = ("rotary_dim",)
_FEED = ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim")
_FREE = (
    *_FEED,
    "ffn_hidden_size",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "vocab_size",
)
#: how many blocks there are
DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers")
_KINDS = ("layer_types", "mlp_layer_types", "layers_block_type")
#: ids of the vocabulary, or lists of them
_IDS = ("_token_id", "_token_ids", "_token_index")


def shrunk(module: nn.Module, degree: int) -> nn.Module | None:
    """Return a small module of the same class with the same kinds of modules; None if that fails.

    What divides by ``degree`` in the model does so in the small one, and what does not does not.
    """
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        return None
    small = copy.deepcopy(config)
    _shrink(small, degree)
    try:
        with torch.device("cpu"):
            built: nn.Module = getattr(module, "with_config", type(module))(small)
    except (ValueError, TypeError, RuntimeError, AttributeError, KeyError, AssertionError, IndexError):
        return None
    return built if _kinds(built) == _kinds(module) else None


def _kinds(module: nn.Module) -> set[tuple[str, str]]:
    return {(kind_of(name), type(part).__name__) for name, part in module.named_modules()}


def _shrink(config: Any, degree: int) -> None:
    for value in list(vars(config).values()):
        if hasattr(value, "to_dict"):
            _shrink(value, degree)
    if getattr(config, "is_heterogeneous", False):
        _shrink_layers(config, degree)
    else:
        _shrink_sizes(config, degree)


def _shrink_layers(config: Any, degree: int) -> None:
    """Shrink a config of transformers some of whose layers have sizes of their own."""
    differing = config.to_dict()["per_layer_config"]
    # a size that differs between layers cannot be read before
    config.per_layer_config = None
    whole = dict(vars(config))
    _shrink_sizes(config, degree)
    config.per_layer_config = {
        int(layer): {name: _like(name, size, whole, config) for name, size in sizes.items()}
        for layer, sizes in differing.items()
        if int(layer) < config.num_hidden_layers
    }


def _like(name: str, size: Any, whole: dict[str, Any], small: Any) -> Any:
    """Return one layer's size, shrunk as the size of the other layers was."""
    before, after = whole.get(name), getattr(small, name, None)
    if type(size) is int and type(before) is int and type(after) is int:
        return size * after // before
    return size


def _shrink_sizes(config: Any, degree: int) -> None:
    for name, size in _small_sizes(config, degree).items():
        if not _is_derived(config, name):
            setattr(config, name, size)
    for name in _KINDS:
        held = getattr(config, name, None)
        if isinstance(held, list):
            setattr(config, name, held[:BLOCKS])
    for name, held in list(vars(config).items()):
        if name.endswith(_IDS):
            setattr(config, name, _within(getattr(config, "vocab_size", None), held))
    if getattr(config, "dtype", None) is not None:
        config.dtype = None  # the proof is in fp32


def _within(rows: Any, ids: Any) -> Any:
    """Return ids past the rows of a smaller vocabulary counted from its first again; None for none."""
    if isinstance(ids, list):
        return [_within(rows, each) for each in ids]
    return ids % rows if type(ids) is int and type(rows) is int and ids >= rows > 0 else ids


def _is_derived(config: Any, name: str) -> bool:
    """Return whether a config works out a size from others, as Falcon's does."""
    held = getattr(type(config), name, None)
    return isinstance(held, property) and held.fset is None


def _small_sizes(config: Any, degree: int) -> dict[str, int]:
    """Return the small value of every size that the config has."""

    def sizes(names: tuple[str, ...]) -> dict[str, int]:
        held = {name: getattr(config, name, None) for name in names}
        return {name: value for name, value in held.items() if type(value) is int and value > 0}

    small = {name: SHARE * degree + size % degree for name, size in sizes(_FREE).items()}
    small |= {name: min(count, BLOCKS) for name, count in sizes(DEPTHS).items()}
    widths, heads, stated = sizes(_HIDDEN), sizes(_HEADS), sizes(_HEAD_DIMS)
    if widths and heads:
        head = next(iter(stated.values()), next(iter(widths.values())) // next(iter(heads.values())))
        small |= {name: size * HEAD // max(head, 1) for name, size in widths.items()}
        small |= {name: min(size, HEAD) for name, size in sizes(_TURNED).items()}
        small |= dict.fromkeys((*stated, *(latent := sizes(_LATENT_DIMS))), HEAD)
        if latent and sizes((_LATENT_QUERY,)):
            small[_LATENT_QUERY] = 2 * HEAD
    return small
