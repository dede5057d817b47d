"""vit_pytorch: of each file its last class, if it is a model of images, with four layers of width 128."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from typing import Any

import torch
import vit_pytorch
from torch import nn

from libraries.member import Member, drawn, without_dropout

#: what constructors take, by the names that they give it
_SIZES: dict[str, Any] = {
    "image_size": 64,
    "img_size": 64,
    "patch_size": 8,
    "image_patch_size": 8,
    "freq_patch_size": 8,
    "frame_patch_size": 2,
    "num_classes": 10,
    "dim": 128,
    "depth": 4,
    "spatial_depth": 2,
    "temporal_depth": 2,
    "cls_depth": 1,
    "heads": 4,
    "dim_head": 32,
    "mlp_dim": 256,
    "frames": 4,
    "seq_len": 256,
    "sm_dim": 96,
    "lg_dim": 128,
    "sm_patch_size": 8,
    "num_residual_streams": 2,
    "num_slots": 8,
    "ndim": 2,
    "input_shape": (64, 64),
    "max_tokens_per_depth": (64, 32, 16, 8),
    "num_hierarchies": 2,
    "block_repeats": (2, 2),
}
#: where a file's names mean other things
_OWN: dict[str, dict[str, Any]] = {
    "cct": {"embedding_dim": 128, "num_layers": 4, "num_heads": 4, "mlp_ratio": 2.0,
            "attention_dropout": 0.0, "stochastic_depth_rate": 0.0},
    "cct_3d": {"embedding_dim": 128, "num_layers": 4, "num_heads": 4, "mlp_ratio": 2.0},
    "crossformer": {"dim": (32, 64, 128, 128), "depth": (1, 1, 2, 1), "local_window_size": 2,
                    "global_window_size": (8, 4, 2, 1)},
    "regionvit": {"dim": (32, 64, 128, 128), "depth": (1, 1, 2, 1), "window_size": 2},
    "levit": {"image_size": 64, "dim": (64, 96, 128), "depth": 2, "heads": (2, 3, 4), "mlp_mult": 2},
    "max_vit": {"dim": 32, "depth": (1, 1, 1, 1), "window_size": 2},
    "max_vit_with_registers": {"dim": 32, "depth": (1, 1, 1, 1), "window_size": 2, "dropout": 0.0},
    "mobile_vit": {"image_size": (64, 64), "dims": (64, 80, 96),
                   "channels": (16, 32, 48, 48, 64, 64, 80, 80, 96, 96, 384)},
    "pit": {"depth": (2, 2, 2)},
    "scalable_vit": {"dim": 32, "depth": (1, 1, 1, 1), "heads": (1, 2, 2, 4),
                     "reduction_factor": (8, 4, 2, 1),
                     "window_size": (2, 2, None, None)},
    "sep_vit": {"dim": 32, "depth": (1, 1, 1, 1), "heads": (1, 2, 2, 4), "window_size": 2},
    "twins_svt": {"s1_local_patch_size": 2, "s2_local_patch_size": 2, "s3_local_patch_size": 2,
                  "s4_local_patch_size": 2, "s1_global_k": 2, "s2_global_k": 2, "s3_global_k": 2,
                  "s4_global_k": 2, "s3_depth": 1, "s4_depth": 1},
    "look_vit": {"patch_size": 8, "highres_patch_size": 4},
}  # fmt: skip
#: which take other models, draw or mask at random, or act
_LEFT = (
    "accept_video_wrapper dino distill efficient es_vit extractor learnable_memory_vit lejepa levjepa "
    "levjepa_nd mae mp3 mpp recorder simmim vaat vat vat_siglip vit_nd_masking na_vit_nested_tensor "
    "na_vit_nested_tensor_3d"
)
_SHAPES: tuple[tuple[int, ...], ...] = ((3, 64, 64), (3, 4, 64, 64), (3, 256))


def names() -> list[str]:
    files = (each.name for each in pkgutil.iter_modules(vit_pytorch.__path__))
    return [name for name in files if name not in _LEFT.split()]


def members(name: str) -> list[Member]:
    build = functools.partial(_built, name)
    return [Member(build=build, inputs=functools.partial(_images, shape)) for shape in _SHAPES]


def _images(shape: tuple[int, ...], samples: int) -> torch.Tensor:
    return drawn(samples, *shape)


def _built(name: str) -> nn.Module:
    torch.manual_seed(0)
    file = importlib.import_module(f"vit_pytorch.{name}")
    kinds = [
        kind for kind in vars(file).values() if inspect.isclass(kind) and kind.__module__ == file.__name__
    ]
    model = [kind for kind in kinds if issubclass(kind, nn.Module)][-1]
    taken = inspect.signature(model).parameters
    sizes = {key: value for key, value in _SIZES.items() if key in taken} | _OWN.get(name, {})
    sizes |= {key: 0.0 for key in taken if "dropout" in key and taken[key].default is not None}
    return without_dropout(model(**sizes))
