"""A GPT of Megatron-LM by the options of its launch.

Source: https://github.com/NVIDIA/Megatron-LM @d98e8a6, megatron/training/arguments.py (options and what is
filled in) and megatron/core/transformer/transformer_config.py (defaults of experts and latent attention).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import whole_number
from parastrat.model import Family
from parastrat.sources.architecture import Architecture, Experts, LatentAttention, Norm, QkNorm
from parastrat.sources.presets import TransformerSource

if TYPE_CHECKING:
    from collections.abc import Mapping

#: the script that trains such a model; others train T5, BERT, images
_PROGRAM = "pretrain_gpt.py"
#: tokens that a tokenizer knows by its type alone
_VOCABULARIES = {"GPT2BPETokenizer": 50_257, "Llama2Tokenizer": 32_000}
#: parts that this reader does not know
_OTHER = frozenset(
    {
        "encoder-num-layers",
        "experimental-attention-variant",
        "heterogeneous-layers-config-path",
        "hybrid-layer-pattern",
        "hybrid-override-pattern",
        "linear-attention-type",
        "moe-latent-size",
        "mtp-num-layers",
        "softmax-type",
        "spec",
        "window-size",
    }
)
#: zeros and ones for layers with and without experts: ([0]*3+[1]*58)
_LAYERS = re.compile(r"\(?\[0\]\s*\*\s*(\d+)\s*\+\s*\[1\]\s*\*\s*(\d+)\)?")
_FFN_UNIT = 64
_LONGEST = "max-position-embeddings"


class _UnknownError(Exception):
    """An option is missing, or says something that no closed form has."""


def megatron_source(program: str, options: Mapping[str, str], tp: int) -> TransformerSource | None:
    """Return the model of a launch; None where an option leaves it open or tells of another part.

    Args:
        program: what the launcher runs.
        options: by their names, as text; switches are empty.
        tp: tensor-parallel ranks, by which the vocabulary is padded.
    """
    if program.rpartition("/")[2] != _PROGRAM or not _OTHER.isdisjoint(options):
        return None
    try:
        return TransformerSource(ref=f"the model of {_PROGRAM}", architecture=_architecture(options, tp))
    except _UnknownError:
        return None


def _number(options: Mapping[str, str], name: str, default: int | None = None) -> int:
    found = whole_number(options[name]) if name in options else default
    if not found:
        raise _UnknownError(name)
    return found


def _architecture(options: Mapping[str, str], tp: int) -> Architecture:
    hidden, heads = _number(options, "hidden-size"), _number(options, "num-attention-heads")
    gated = "swiglu" in options
    usual = int(4 * hidden * 2 / 3 / _FFN_UNIT) * _FFN_UNIT if gated else 4 * hidden
    ffn = _number(options, "ffn-hidden-size", usual)
    biased = "disable-bias-linear" not in options
    grouped = "group-query-attention" in options
    rows = options.get("position-embedding-type", "learned_absolute")
    if rows not in ("learned_absolute", "rope", "yarn", "none"):
        raise _UnknownError(rows)
    has_rows = rows == "learned_absolute" and "no-position-embedding" not in options
    return Architecture(
        name=_PROGRAM,
        family=Family.DECODER,
        layers=_number(options, "num-layers"),
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=_vocabulary(options, tp),
        kv_heads=_number(options, "num-query-groups", 1) if grouped else heads,
        head_dim=_number(options, "kv-channels", hidden // heads),
        norm=Norm.RMS if options.get("normalization") == "RMSNorm" else Norm.LAYER,
        gated=gated,
        tied="untie-embeddings-and-output-weights" not in options,
        qkv_bias=biased or "add-qkv-bias" in options,
        output_bias=biased,
        ffn_bias=biased,
        fused_qkv=True,
        squared="squared-relu" in options,
        qk_norm=QkNorm.HEAD if "qk-layernorm" in options else None,
        positions=_number(options, _LONGEST) if has_rows else 0,
        max_sequence_length=_number(options, _LONGEST) if _LONGEST in options else None,
        latent=_latent(options) if "multi-latent-attention" in options else None,
        experts=_experts(options, ffn) if "num-experts" in options else None,
        # of hidden states and of attention, 0.1 each where nothing is said
        dropout=any(_rate(options, name) > 0 for name in ("hidden-dropout", "attention-dropout")),
    )


def _rate(options: Mapping[str, str], name: str) -> float:
    try:
        return float(options.get(name, "0.1"))
    except ValueError as error:
        raise _UnknownError(name) from error


def _vocabulary(options: Mapping[str, str], tp: int) -> int:
    """Return the tokens with those that pad them, a multiple of 128 for each tensor-parallel rank."""
    if "padded-vocab-size" in options:
        return _number(options, "padded-vocab-size")
    # the one tokenizer that takes merges
    usual = "GPT2BPETokenizer" if "merge-file" in options else ""
    tokens = _number(options, "vocab-size", _VOCABULARIES.get(options.get("tokenizer-type", usual)))
    unit = _number(options, "make-vocab-size-divisible-by", 128) * tp
    return -(-tokens // unit) * unit


def _experts(options: Mapping[str, str], ffn: int) -> Experts:
    every = options.get("moe-layer-freq", "1")
    layers = _LAYERS.fullmatch(every.strip("\"'"))
    if layers is None and every != "1":
        raise _UnknownError(every)
    return Experts(
        count=_number(options, "num-experts"),
        top_k=_number(options, "moe-router-topk", 2),
        ffn=_number(options, "moe-ffn-hidden-size", ffn),
        shared_ffn=_number(options, "moe-shared-expert-intermediate-size")
        if "moe-shared-expert-intermediate-size" in options
        else 0,
        dense_layers=0 if layers is None else int(layers[1]),
        router_bias="moe-router-enable-expert-bias" in options,
    )


def _latent(options: Mapping[str, str]) -> LatentAttention:
    return LatentAttention(
        q_rank=_number(options, "q-lora-rank") if "q-lora-rank" in options else 0,
        kv_rank=_number(options, "kv-lora-rank", 32),
        nope_dim=_number(options, "qk-head-dim", 128),
        rope_dim=_number(options, "qk-pos-emb-head-dim", 64),
        v_dim=_number(options, "v-head-dim", 128),
    )
