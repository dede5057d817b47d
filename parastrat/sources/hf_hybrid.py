"""Families of transformers with Mamba-2 layers: their configs, read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from parastrat.errors import ModelError
from parastrat.model import Family
from parastrat.sources.architecture import Architecture, Experts, LayerKind, Norm, StateSpace
from parastrat.sources.hf_fields import Config, UnknownFormError

#: how configs call the kinds of layers; transformers renames the older names
_KINDS = {
    "linear_attention": LayerKind.SCAN,
    "mamba": LayerKind.SCAN,
    "full_attention": LayerKind.ATTENTION,
    "attention": LayerKind.ATTENTION,
    "mlp": LayerKind.FEED_FORWARD,
    "moe": LayerKind.EXPERTS,
}
#: the layers of a Nemotron-H whose config states none
_USUAL = "ME*-"
#: names of fields from before transformers had the family, which its class still takes
_EARLIER = ("mamba_n_groups", "mamba_d_conv", "mamba_expand", "mamba_chunk_size", "mamba_conv_bias")


def _pattern(config: Config) -> str:
    """Return the layers' letters: of the list, else of NVIDIA's own string.

    Raises:
        UnknownFormError: another kind of layer.
    """
    listed = config.value("layers_block_type")
    if isinstance(listed, list):
        letters = [_KINDS.get(str(kind)) for kind in listed]
    else:
        stated = config.table.get("hybrid_override_pattern", _USUAL)
        known = {kind.value: kind for kind in LayerKind}
        letters = [known.get(letter) for letter in str(stated)]
    if None in letters or not letters:
        raise UnknownFormError(f"{config.path}: layers of another kind than {', '.join(LayerKind)}")
    return "".join(letter for letter in letters if letter is not None)


def _nemotron_h(config: Config) -> Architecture:
    if set(_EARLIER) & set(config.table):
        raise UnknownFormError(f"{config.path}: fields of an earlier form")
    pattern, heads = _pattern(config), config.size("num_attention_heads")
    config.require("sliding_window", None)
    # its module keeps two tables whatever stands there
    config.require("tie_word_embeddings", wanted=False)
    experts = None
    if LayerKind.EXPERTS in pattern:
        latent = config.size("moe_latent_size", 0, least=0)
        # experts have none, and what stands beside them has
        config.require("mlp_bias", wanted=False)
        experts = Experts(
            count=config.size("n_routed_experts"),
            top_k=config.size("num_experts_per_tok"),
            ffn=config.size("moe_intermediate_size"),
            shared_ffn=config.size("moe_shared_expert_intermediate_size"),
            latent=latent,
            fp32_router=True,
        )
    return Architecture(
        name="",
        family=Family.DECODER,
        layers=len(pattern),
        hidden=config.size("hidden_size"),
        heads=heads,
        kv_heads=config.size("num_key_value_heads", heads),
        head_dim=config.size("head_dim"),
        ffn=config.size("intermediate_size"),
        vocab=config.size("vocab_size"),
        norm=Norm.RMS_FP32,
        gated=False,
        squared=True,
        rotary=False,
        tied=False,
        ffn_bias=config.flag("mlp_bias"),
        max_sequence_length=config.size("max_position_embeddings"),
        experts=experts,
        pattern=pattern,
        state_space=_state_space(config, "mamba_num_heads", "mamba_head_dim", "ssm_state_size"),
    )


def _state_space(config: Config, heads: str, head_dim: str, state: str) -> StateSpace:
    """Return a config's scans, by the names that the family gives to their sizes."""
    return StateSpace(
        heads=config.size(heads),
        head_dim=config.size(head_dim),
        state=config.size(state),
        groups=config.size("n_groups"),
        chunk=config.size("chunk_size"),
        window=config.size("conv_kernel"),
        bias=config.flag("use_bias"),
        conv_bias=config.flag("use_conv_bias"),
    )


def _mamba2(config: Config) -> Architecture:
    layers, hidden = config.size("num_hidden_layers"), config.size("hidden_size")
    space = _state_space(config, "num_heads", "head_dim", "state_size")
    if space.width != config.size("expand") * hidden:
        raise ModelError(
            f"{config.path}: {space.heads} heads of {space.head_dim} are not expand x hidden_size",
            hint="correct num_heads or expand",
        )
    return Architecture(
        name="",
        family=Family.DECODER,
        layers=layers,
        hidden=hidden,
        heads=0,
        kv_heads=0,
        head_dim=0,
        ffn=0,
        vocab=config.size("vocab_size"),
        norm=Norm.RMS,
        gated=False,
        tied=config.flag("tie_word_embeddings"),
        fp32_stream=config.flag("residual_in_fp32"),
        pattern=LayerKind.SCAN * layers,
        state_space=space,
    )


def _written_nemotron_h(a: Architecture) -> dict[str, Any]:
    names = {kind: name for name, kind in reversed(_KINDS.items())}
    s, e = a.state_space, a.experts
    if s is None:
        return {}
    of_experts = (
        {}
        if e is None
        else {
            "n_routed_experts": e.count,
            "num_experts_per_tok": e.top_k,
            "moe_intermediate_size": e.ffn,
            "moe_shared_expert_intermediate_size": e.shared_ffn,
            "moe_latent_size": e.latent or None,
        }
    )
    return of_experts | {
        "hidden_size": a.hidden,
        "layers_block_type": [names[LayerKind(letter)] for letter in a.pattern],
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "intermediate_size": a.ffn,
        "vocab_size": a.vocab,
        "tie_word_embeddings": a.tied,
        "mlp_bias": a.ffn_bias,
        "max_position_embeddings": a.max_sequence_length or 4096,
        "mamba_num_heads": s.heads,
        "mamba_head_dim": s.head_dim,
        "ssm_state_size": s.state,
        "n_groups": s.groups,
        "chunk_size": s.chunk,
        "conv_kernel": s.window,
        "use_bias": s.bias,
        "use_conv_bias": s.conv_bias,
    }


def _written_mamba2(a: Architecture) -> dict[str, Any]:
    s = a.state_space
    if s is None:
        return {}
    return {
        "hidden_size": a.hidden,
        "num_hidden_layers": a.layers,
        "vocab_size": a.vocab,
        "tie_word_embeddings": a.tied,
        "residual_in_fp32": a.fp32_stream,
        "num_heads": s.heads,
        "head_dim": s.head_dim,
        "state_size": s.state,
        "n_groups": s.groups,
        "chunk_size": s.chunk,
        "conv_kernel": s.window,
        "expand": s.width // a.hidden,
        "use_bias": s.bias,
        "use_conv_bias": s.conv_bias,
    }


#: what a config says, and a config that says it
HybridForm: TypeAlias = tuple[Callable[[Config], Architecture], Callable[[Architecture], dict[str, Any]]]

#: model_type -> its form
HYBRIDS: Mapping[str, HybridForm] = {
    "nemotron_h": (_nemotron_h, _written_nemotron_h),
    "mamba2": (_mamba2, _written_mamba2),
}
