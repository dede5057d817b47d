"""Plans applied to live models: the one part of parastrat that imports torch.

Names are resolved on first use, so that ``parastrat.runtime.blocks`` loads without the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parastrat.runtime.apply import auto_parallelize
    from parastrat.runtime.chunked_loss import chunked_cross_entropy
    from parastrat.runtime.training.checkpoints import load_checkpoint, save_checkpoint
    from parastrat.runtime.training.data_loaders import shard_dataloader
    from parastrat.runtime.training.evaluation import evaluate
    from parastrat.runtime.training.gradients import clip_grad_norm_
    from parastrat.runtime.training.step import forward_backward
    from parastrat.runtime.wrapping import explain_wrapping

__all__ = [
    "auto_parallelize",
    "chunked_cross_entropy",
    "clip_grad_norm_",
    "evaluate",
    "explain_wrapping",
    "forward_backward",
    "load_checkpoint",
    "save_checkpoint",
    "shard_dataloader",
]

_HOMES = {
    "auto_parallelize": "apply",
    "chunked_cross_entropy": "chunked_loss",
    "clip_grad_norm_": "training.gradients",
    "evaluate": "training.evaluation",
    "explain_wrapping": "wrapping",
    "forward_backward": "training.step",
    "load_checkpoint": "training.checkpoints",
    "save_checkpoint": "training.checkpoints",
    "shard_dataloader": "training.data_loaders",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"parastrat.runtime.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'parastrat.runtime' has no attribute {name!r}")
