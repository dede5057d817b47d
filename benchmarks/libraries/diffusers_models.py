"""diffusers: transformers, U-Nets and autoencoders of images, video and sound, of few and narrow layers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import diffusers
import torch
from torch import nn

from libraries.member import Member, drawn, without_dropout

_HEADS = {"num_attention_heads": 4, "attention_head_dim": 32, "num_layers": 3}
_WIDTH = 128
_TEXT = 16


def _times(samples: int) -> torch.Tensor:
    return torch.arange(samples)


def _latents(*shape: int, text: int = 0, **others: Callable[[int], Any]) -> Callable[[int], dict[str, Any]]:
    """Return what makes latents, times and, of a width, what a text encoder gave."""

    def made(samples: int) -> dict[str, Any]:
        told = {"encoder_hidden_states": drawn(samples, _TEXT, text)} if text else {}
        own = {name: make(samples) for name, make in others.items()}
        return {"hidden_states": drawn(samples, *shape), "timestep": _times(samples), **told, **own}

    return made


def _noised(*shape: int, text: int = 0) -> Callable[[int], dict[str, Any]]:
    def made(samples: int) -> dict[str, Any]:
        told = {"encoder_hidden_states": drawn(samples, _TEXT, text)} if text else {}
        return {"sample": drawn(samples, *shape), "timestep": _times(samples), **told}

    return made


def _samples(*shape: int) -> Callable[[int], dict[str, Any]]:
    return lambda samples: {"sample": drawn(samples, *shape)}


def _mask(samples: int) -> torch.Tensor:
    return torch.ones(samples, _TEXT, dtype=torch.bool)


_CROSS: dict[str, Any] = {
    "block_out_channels": (32, 64),
    "layers_per_block": 2,
    "cross_attention_dim": 64,
    "norm_num_groups": 8,
    "attention_head_dim": 8,
}
_DOWN, _UP = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
_FLUX_TEXT, _FLUX_IDS = torch.zeros(_TEXT, 3), torch.cartesian_prod(*[torch.arange(8.0)] * 2)
_MODELS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "DiTTransformer2DModel": (
        {**_HEADS, "sample_size": 32},
        _latents(4, 32, 32, class_labels=_times),
    ),
    "Transformer2DModel": (
        {**_HEADS, "in_channels": 32, "cross_attention_dim": 64},
        lambda n: {"hidden_states": drawn(n, 32, 16, 16), "encoder_hidden_states": drawn(n, _TEXT, 64)},
    ),
    "UNet2DModel": (
        {"block_out_channels": (32, 64, 64, 96), "norm_num_groups": 8, "sample_size": 32},
        _noised(3, 32, 32),
    ),
    "UNet2DConditionModel": (
        {**_CROSS, "down_block_types": _DOWN, "up_block_types": _UP, "sample_size": 32},
        _noised(4, 32, 32, text=64),
    ),
    "ControlNetModel": (
        {**_CROSS, "down_block_types": _DOWN},
        lambda n: {**_noised(4, 16, 16, text=64)(n), "controlnet_cond": drawn(n, 3, 128, 128)},
    ),
    "UNet3DConditionModel": (
        {
            **_CROSS,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        _noised(4, 4, 16, 16, text=64),
    ),
    "UNetSpatioTemporalConditionModel": (
        {
            "block_out_channels": (32, 64),
            "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
            "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
            "cross_attention_dim": 64,
            "num_attention_heads": (4, 8),
            "addition_time_embed_dim": 32,
            "projection_class_embeddings_input_dim": 96,
        },
        lambda n: {
            "sample": drawn(n, 4, 8, 16, 16),
            "timestep": _times(n),
            "encoder_hidden_states": drawn(n, 1, 64),
            "added_time_ids": torch.ones(n, 3),
        },
    ),
    "UNet1DModel": (
        {"sample_size": 256, "extra_in_channels": 64},
        _noised(2, 256),
    ),
    "UVit2DModel": (
        {
            "hidden_size": 64,
            "cond_embed_dim": 32,
            "micro_cond_encode_dim": 16,
            "micro_cond_embed_dim": 80,
            "encoder_hidden_size": 32,
            "vocab_size": 128,
            "codebook_size": 100,
            "in_channels": 64,
            "block_out_channels": 64,
            "block_num_heads": 4,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "sample_size": 16,
        },
        lambda n: {
            "input_ids": torch.zeros(n, 16, 16, dtype=torch.long),
            "encoder_hidden_states": drawn(n, _TEXT, 32),
            "pooled_text_emb": drawn(n, 32),
            "micro_conds": torch.ones(n, 5),
        },
    ),
    "SD3Transformer2DModel": (
        {
            **_HEADS,
            "sample_size": 32,
            "joint_attention_dim": 64,
            "caption_projection_dim": _WIDTH,
            "pooled_projection_dim": 64,
            "dual_attention_layers": (0,),
            "qk_norm": "rms_norm",
        },
        _latents(16, 32, 32, text=64, pooled_projections=lambda n: drawn(n, 64)),
    ),
    "FluxTransformer2DModel": (
        {
            **_HEADS,
            "in_channels": 16,
            "num_single_layers": 3,
            "joint_attention_dim": 64,
            "pooled_projection_dim": 64,
            "axes_dims_rope": (8, 12, 12),
        },
        _latents(
            64,
            16,
            text=64,
            pooled_projections=lambda n: drawn(n, 64),
            img_ids=lambda _: torch.cat([torch.zeros(64, 1), _FLUX_IDS], 1),
            txt_ids=lambda _: _FLUX_TEXT.clone(),
        ),
    ),
    "PixArtTransformer2DModel": (
        {**_HEADS, "cross_attention_dim": _WIDTH, "sample_size": 32, "caption_channels": 64},
        _latents(
            4, 32, 32, text=64, added_cond_kwargs=lambda _: dict.fromkeys(("resolution", "aspect_ratio"))
        ),
    ),
    "WanTransformer3DModel": (
        {**_HEADS, "text_dim": 64, "ffn_dim": 256},
        _latents(16, 3, 16, 16, text=64),
    ),
    "CogVideoXTransformer3DModel": (
        {
            **_HEADS,
            "text_embed_dim": 64,
            "sample_width": 16,
            "sample_height": 16,
            "sample_frames": 9,
            "max_text_seq_length": _TEXT,
        },
        _latents(3, 16, 16, 16, text=64),
    ),
    "HunyuanVideoTransformer3DModel": (
        {
            **_HEADS,
            "num_single_layers": 2,
            "text_embed_dim": 64,
            "pooled_projection_dim": 64,
            "rope_axes_dim": (8, 12, 12),
        },
        _latents(
            16,
            2,
            16,
            16,
            text=64,
            encoder_attention_mask=_mask,
            pooled_projections=lambda n: drawn(n, 64),
            guidance=lambda n: torch.full((n,), 6.0),
        ),
    ),
    "LTXVideoTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 16,
            "out_channels": 16,
            "cross_attention_dim": _WIDTH,
            "caption_channels": 64,
        },
        _latents(
            128,
            16,
            text=64,
            encoder_attention_mask=_mask,
            num_frames=lambda _: 2,
            height=lambda _: 8,
            width=lambda _: 8,
        ),
    ),
    "SanaTransformer2DModel": (
        {
            **_HEADS,
            "num_cross_attention_heads": 4,
            "cross_attention_head_dim": 32,
            "cross_attention_dim": _WIDTH,
            "caption_channels": 64,
        },
        _latents(32, 16, 16, text=64),
    ),
    "QwenImageTransformer2DModel": (
        {**_HEADS, "in_channels": 16, "joint_attention_dim": 64, "axes_dims_rope": (8, 12, 12)},
        _latents(
            64,
            16,
            text=64,
            encoder_hidden_states_mask=_mask,
            img_shapes=lambda n: [[(1, 8, 8)]] * n,
        ),
    ),
    "AuraFlowTransformer2DModel": (
        {
            "num_attention_heads": 4,
            "attention_head_dim": 32,
            "num_mmdit_layers": 2,
            "num_single_dit_layers": 3,
            "joint_attention_dim": 64,
            "caption_projection_dim": _WIDTH,
            "sample_size": 32,
        },
        _latents(4, 32, 32, text=64),
    ),
    "MochiTransformer3DModel": (
        {**_HEADS, "pooled_projection_dim": 64, "text_embed_dim": 64, "max_sequence_length": _TEXT},
        _latents(12, 2, 16, 16, text=64, encoder_attention_mask=_mask),
    ),
    "LatteTransformer3DModel": (
        {
            **_HEADS,
            "in_channels": 4,
            "out_channels": 8,
            "cross_attention_dim": _WIDTH,
            "sample_size": 16,
            "patch_size": 2,
            "activation_fn": "gelu-approximate",
            "num_embeds_ada_norm": 1000,
            "norm_type": "ada_norm_single",
            "caption_channels": 64,
            "video_length": 4,
        },
        _latents(4, 4, 16, 16, text=64),
    ),
    "PriorTransformer": (
        {**_HEADS, "embedding_dim": 64, "num_embeddings": _TEXT},
        _latents(64, text=64, proj_embedding=lambda n: drawn(n, 64)),
    ),
    "AutoencoderKL": (
        {
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "block_out_channels": (32, 64),
            "norm_num_groups": 8,
        },
        _samples(3, 64, 64),
    ),
    "AutoencoderTiny": ({}, _samples(3, 64, 64)),
    "AutoencoderDC": (
        {
            "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
            "encoder_block_out_channels": (32, 64),
            "decoder_block_out_channels": (32, 64),
            "encoder_layers_per_block": (1, 1),
            "decoder_layers_per_block": (1, 1),
            "encoder_qkv_multiscales": ((), (5,)),
            "decoder_qkv_multiscales": ((), (5,)),
            "latent_channels": 8,
        },
        _samples(3, 32, 32),
    ),
    "VQModel": ({"block_out_channels": (32,), "norm_num_groups": 8}, _samples(3, 32, 32)),
    "AutoencoderKLWan": ({"base_dim": 16, "dim_mult": [1, 2, 2, 2]}, _samples(3, 5, 32, 32)),
    "AutoencoderKLTemporalDecoder": (
        {"block_out_channels": (32,)},
        lambda n: {"sample": drawn(n, 3, 32, 32), "num_frames": 1},
    ),
    "AutoencoderKLCogVideoX": (
        {"block_out_channels": (16, 32, 32, 32), "norm_num_groups": 8, "layers_per_block": 1},
        _samples(3, 5, 32, 32),
    ),
    "AutoencoderOobleck": (
        {
            "encoder_hidden_size": 16,
            "downsampling_ratios": [2, 4, 4],
            "channel_multiples": [1, 2, 4],
            "decoder_channels": 16,
            "decoder_input_channels": 8,
        },
        _samples(2, 2048),
    ),
}


def names() -> list[str]:
    for name in _MODELS:
        getattr(diffusers, name)  # which imports its file: once, before processes of their own are forked
    return [*_MODELS, *(f"{name}, checkpointed" for name in _CHECKPOINTED)]


#: that run their blocks again in backward, as their own switch has it
_CHECKPOINTED = ("UNet2DConditionModel", "FluxTransformer2DModel", "WanTransformer3DModel", "AutoencoderKL")


def members(name: str) -> list[Member]:
    own, _, checkpointed = name.partition(", ")
    sizes, inputs = _MODELS[own]
    build = functools.partial(_built, own, sizes, checkpointed=bool(checkpointed))
    return [Member(build=build, inputs=inputs)]


def _built(name: str, sizes: dict[str, Any], *, checkpointed: bool) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = getattr(diffusers, name)(**sizes)
    if checkpointed:
        module.enable_gradient_checkpointing()
    return without_dropout(module)
