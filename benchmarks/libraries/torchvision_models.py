"""torchvision: of each family of models the smallest, and one of each variant of the others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torchvision
from torch import nn

from libraries.member import Member, drawn, without_dropout

_SMALL = (3, 64, 64)
#: of what has sides of its own
_OWN = (3, 224, 224)
_VIDEO = (3, 8, 64, 64)

#: names of models, with the shapes that are tried
_IMAGES = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s maxvit_t mnasnet0_5 mobilenet_v2 "
    "mobilenet_v3_small regnet_x_400mf regnet_y_400mf resnet18 resnet50 resnext50_32x4d shufflenet_v2_x0_5 "
    "squeezenet1_0 squeezenet1_1 swin_t swin_v2_t vgg11 vgg11_bn vit_b_16 googlenet "
    "lraspp_mobilenet_v3_large deeplabv3_mobilenet_v3_large deeplabv3_resnet50 fcn_resnet50"
)
_VIDEOS = "mc3_18 r2plus1d_18 r3d_18 s3d mvit_v1_b mvit_v2_s swin3d_t"
_SHAPES: dict[str, tuple[tuple[int, ...], ...]] = (
    dict.fromkeys(_IMAGES.split(), (_SMALL, (3, 96, 96), _OWN))
    | dict.fromkeys(_VIDEOS.split(), (_VIDEO, (3, 16, 64, 64), (3, 16, 112, 112), (3, 16, 224, 224)))
    | {"inception_v3": ((3, 96, 96), (3, 299, 299))}
)
#: of losses of their own, from images of their own sizes and boxes
_DETECTORS = (
    "fasterrcnn_mobilenet_v3_large_320_fpn", "fcos_resnet50_fpn", "retinanet_resnet50_fpn", "ssd300_vgg16",
    "ssdlite320_mobilenet_v3_large", "keypointrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn",
)  # fmt: skip
_FLOWS = ("raft_small", "raft_large")


def names() -> list[str]:
    return [*_SHAPES, *_FLOWS, *_DETECTORS]


def members(name: str) -> list[Member]:
    build = functools.partial(_built, name)
    if name in _FLOWS:
        return [Member(build=build, inputs=lambda n: (drawn(n, 3, 128, 128), drawn(n, 3, 128, 128)))]
    if name in _DETECTORS:
        return [Member(build=build, inputs=_boxed)]
    return [Member(build=build, inputs=_images(shape)) for shape in _SHAPES.get(name, (_SMALL, _OWN))]


def _images(shape: tuple[int, ...]) -> Callable[[int], torch.Tensor]:
    return lambda samples: drawn(samples, *shape)


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    own: dict[str, Any] = {"weights": None}
    if any(word in name for word in ("rcnn", "fcos", "retinanet", "ssd", "deeplab", "fcn", "lraspp")):
        own["weights_backbone"] = None
    module: nn.Module = torchvision.models.get_model(name, **own)
    for part in module.modules():
        if type(part).__name__ == "StochasticDepth":
            part.p = 0.0
    return without_dropout(module)


def _boxed(samples: int) -> dict[str, Any]:
    box = {"boxes": torch.tensor([[8.0, 8.0, 40.0, 40.0]]), "labels": torch.ones(1, dtype=torch.long)}
    return {"images": list(drawn(samples, 3, 96, 96)), "targets": [dict(box) for _ in range(samples)]}
