"""monai: networks of volumes and slices, of few channels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from monai.networks import nets
from torch import nn

from libraries.member import Member, drawn, ids, without_dropout

_3D = {"spatial_dims": 3, "in_channels": 1, "out_channels": 2}
_2D = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
_STEPS = {"channels": (8, 16, 32), "strides": (2, 2)}
_VIT = {"hidden_size": 96, "mlp_dim": 192, "num_heads": 4}


def _volume(side: int = 32) -> Callable[[int], Any]:
    return lambda samples: drawn(samples, 1, side, side, side)


def _slice(side: int = 64) -> Callable[[int], Any]:
    return lambda samples: drawn(samples, 1, side, side)


_MODELS: dict[str, tuple[dict[str, Any], Callable[[int], Any]]] = {
    "UNet": ({**_3D, **_STEPS, "num_res_units": 2}, _volume()),
    "BasicUNet": ({"features": (8, 8, 16, 32, 64, 8)}, _volume()),
    "BasicUNetPlusPlus": ({"features": (8, 8, 16, 32, 64, 8), "deep_supervision": True}, _volume()),
    "AttentionUnet": ({**_3D, **_STEPS}, _volume()),
    "DynUNet": (
        {**_3D, "kernel_size": [3, 3, 3], "strides": [1, 2, 2], "upsample_kernel_size": [2, 2],
         "filters": [8, 16, 32], "deep_supervision": True, "res_block": True},
        _volume(),
    ),
    "SegResNet": ({"init_filters": 8}, _volume()),
    "SegResNetDS": ({"init_filters": 8, "dsdepth": 2}, _volume()),
    "SegResNetVAE": ({"input_image_size": (32, 32, 32)}, _volume()),
    "VNet": ({}, _volume()),
    "UNETR": ({"in_channels": 1, "out_channels": 2, "img_size": 32, "feature_size": 8, **_VIT}, _volume()),
    "SwinUNETR": ({"in_channels": 1, "out_channels": 2, "feature_size": 12}, _volume(64)),
    "ViT": ({"in_channels": 1, "img_size": 32, "patch_size": 8, **_VIT, "classification": True}, _volume()),
    "ViTAutoEnc": ({"in_channels": 1, "img_size": 64, "patch_size": 16, **_VIT}, _volume(64)),
    "DenseNet121": ({"spatial_dims": 2, "in_channels": 1, "out_channels": 4}, _slice()),
    "SEResNet50": ({"spatial_dims": 2, "in_channels": 1, "num_classes": 4}, _slice()),
    "EfficientNetBN": (
        {"model_name": "efficientnet-b0", "pretrained": False, "in_channels": 1, "num_classes": 4},
        _slice(),
    ),
    "HighResNet": ({"spatial_dims": 3, "in_channels": 1, "out_channels": 2}, _volume()),
    "AHNet": ({"layers": (1, 1, 1, 1), "psp_block_num": 2}, _volume(64)),
    "FlexibleUNet": (
        {"in_channels": 1, "out_channels": 2, "backbone": "efficientnet-b0", "pretrained": False},
        _slice(),
    ),
    "AutoencoderKL": (
        {**_2D, "channels": (16, 32), "num_res_blocks": (1, 1), "attention_levels": (False, True),
         "norm_num_groups": 8},
        _slice(),
    ),
    "VQVAE": (
        {**_2D, "channels": (16, 32), "num_res_channels": (16, 32), "num_res_layers": 1,
         "downsample_parameters": ((2, 4, 1, 1),) * 2, "upsample_parameters": ((2, 4, 1, 1, 0),) * 2},
        _slice(),
    ),
    "DiffusionModelUNet": (
        {**_2D, "channels": (16, 32), "num_res_blocks": (1, 1), "attention_levels": (False, True),
         "norm_num_groups": 8},
        lambda n: {"x": drawn(n, 1, 32, 32), "timesteps": torch.arange(n)},
    ),
    "DecoderOnlyTransformer": (
        {"num_tokens": 200, "max_seq_len": 64, "attn_layers_dim": 96, "attn_layers_depth": 3,
         "attn_layers_heads": 4},
        lambda n: ids(n, 64, 200),
    ),
    "RegUNet": (
        {"spatial_dims": 3, "in_channels": 1, "num_channel_initial": 8, "depth": 2, "out_channels": 3},
        _volume(),
    ),
    "VoxelMorph": ({}, lambda n: (drawn(n, 1, 32, 32, 32), drawn(n, 1, 32, 32, 32))),
    "MedNeXt": ({"spatial_dims": 3, "init_filters": 8, "in_channels": 1, "out_channels": 2}, _volume()),
    "FullyConnectedNet": (
        {"in_channels": 32, "out_channels": 8, "hidden_channels": [256, 256, 256]},
        lambda n: drawn(n, 32),
    ),
}  # fmt: skip


def names() -> list[str]:
    return list(_MODELS)


def members(name: str) -> list[Member]:
    return [Member(build=functools.partial(_built, name), inputs=_MODELS[name][1])]


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return without_dropout(getattr(nets, name)(**_MODELS[name][0]))
