"""open_clip: a model of each kind of towers, of few and narrow layers, from its own configs."""

from __future__ import annotations

import functools
from typing import Any

import open_clip
import torch
from torch import nn

from libraries.member import Member, drawn, ids, without_dropout

_TEXT = {"context_length": 32, "vocab_size": 1000, "width": 128, "heads": 4, "layers": 3}
_VIT = {"image_size": 64, "layers": 3, "width": 128, "head_width": 32, "patch_size": 8}
_TIMM = {"timm_model_pretrained": False, "timm_proj": "linear", "image_size": 64}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("CLIP", {"vision_cfg": _VIT, "text_cfg": _TEXT}),
    "ViT, quick GELU": ("CLIP", {"vision_cfg": _VIT, "text_cfg": _TEXT, "quick_gelu": True}),
    "ViT, attentional pool": (
        "CLIP",
        {"vision_cfg": {**_VIT, "attentional_pool": True, "attn_pooler_heads": 4}, "text_cfg": _TEXT},
    ),
    "ResNet": (
        "CLIP",
        {"vision_cfg": {"image_size": 64, "layers": [1, 1, 2, 1], "width": 32, "patch_size": None},
         "text_cfg": _TEXT},
    ),
    "timm ConvNeXt": (
        "CustomTextCLIP",
        {"vision_cfg": {**_TIMM, "timm_model_name": "convnext_atto", "timm_pool": ""}, "text_cfg": _TEXT},
    ),
    "SigLIP": (
        "CustomTextCLIP",
        {"vision_cfg": {**_TIMM, "timm_model_name": "vit_tiny_patch16_224", "timm_pool": "map",
                        "image_size": 224,
                        "timm_proj": "none"},
         "text_cfg": {**_TEXT, "width": 192, "no_causal_mask": True, "proj_bias": True,
                      "pool_type": "last"},
         "init_logit_bias": -10.0},
    ),
    "CoCa": (
        "CoCa",
        {"vision_cfg": {**_VIT, "attentional_pool": True, "attn_pooler_heads": 4, "output_tokens": True},
         "text_cfg": {**_TEXT, "embed_cls": True, "output_tokens": True},
         "multimodal_cfg": _TEXT},
    ),
}  # fmt: skip
_EMBEDDED = {"SigLIP": 192}


def names() -> list[str]:
    return [*_MODELS, *(f"{name}, as a dict" for name in ("ViT",)), "ViT, checkpointed"]


def members(name: str) -> list[Member]:
    side = 224 if name == "SigLIP" else 64
    return [Member(build=functools.partial(_built, name), inputs=functools.partial(_captioned, side))]


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    own = "ViT" if name in {"ViT, as a dict", "ViT, checkpointed"} else name
    kind, sizes = _MODELS[own]
    module: nn.Module = getattr(open_clip.model if hasattr(open_clip.model, kind) else open_clip, kind)(
        embed_dim=_EMBEDDED.get(own, 128), **sizes, **({"output_dict": True} if "dict" in name else {})
    )
    if "checkpointed" in name:
        module.set_grad_checkpointing()
    return without_dropout(module)


def _captioned(side: int, samples: int) -> dict[str, torch.Tensor]:
    return {"image": drawn(samples, 3, side, side), "text": ids(samples, 32, 1000)}
