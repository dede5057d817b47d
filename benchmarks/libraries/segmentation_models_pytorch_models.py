"""segmentation_models_pytorch: architectures over a small encoder, and one over other encoders."""

from __future__ import annotations

import functools

import segmentation_models_pytorch as smp
import torch
from torch import nn

from libraries.member import Member, drawn, without_dropout

_ARCHITECTURES = (
    "Unet UnetPlusPlus MAnet Linknet FPN PSPNet DeepLabV3 DeepLabV3Plus PAN UPerNet Segformer DPT"
)
_ENCODERS = (
    "efficientnet-b0 mobilenet_v2 densenet121 timm-regnetx_002 mit_b0 mobileone_s0 tu-convnext_atto dpn68"
)
_SIDES = (64, 128, 224)


def names() -> list[str]:
    return [f"{each}/resnet18" for each in _ARCHITECTURES.split()] + [
        f"Unet/{each}" for each in _ENCODERS.split()
    ]


def members(name: str) -> list[Member]:
    build = functools.partial(_built, *name.split("/"))
    return [Member(build=build, inputs=functools.partial(_images, side)) for side in _SIDES]


def _images(side: int, samples: int) -> torch.Tensor:
    return drawn(samples, 3, side, side)


def _built(architecture: str, encoder: str) -> nn.Module:
    torch.manual_seed(0)
    own = "tu-vit_tiny_patch16_224" if architecture == "DPT" else encoder
    module: nn.Module = getattr(smp, architecture)(encoder_name=own, encoder_weights=None, classes=4)
    return without_dropout(module)
