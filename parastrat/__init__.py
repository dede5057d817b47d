"""parastrat: how should this model be trained in parallel on these machines?

``auto_parallelize(model)`` wraps a model as a plan says; the command ``parastrat recommend`` makes the
plan. Names that need torch are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parastrat.runtime import (
        auto_parallelize,
        chunked_cross_entropy,
        clip_grad_norm_,
        evaluate,
        explain_wrapping,
        forward_backward,
        load_checkpoint,
        save_checkpoint,
        shard_dataloader,
    )

__version__ = "0.1.0"

__all__ = [
    "__version__",
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


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("parastrat.runtime"), name)
    raise AttributeError(f"module 'parastrat' has no attribute {name!r}")
