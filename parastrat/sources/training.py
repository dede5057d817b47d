"""How models are trained: as a workload says, or usually where nobody does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.chunked_loss import in_chunks
from parastrat.model import Family
from parastrat.workload import Optimizer

if TYPE_CHECKING:
    from parastrat.model import ModelSource, ModelSpec
    from parastrat.stack import Kernels
    from parastrat.workload import Workload


def default_optimizer(source: ModelSource) -> Optimizer:
    """Return the published training's optimizer, else AdamW; for convolutions SGD with momentum."""
    if source.defaults.optimizer is not None:
        return source.defaults.optimizer
    return Optimizer.SGD_MOMENTUM if source.family is Family.CONVOLUTIONAL else Optimizer.ADAMW


def trained_model(source: ModelSource, workload: Workload, kernels: Kernels) -> ModelSpec:
    """Return a model at what is trained with: its sequence length, its number format, and its loss.

    Raises:
        ModelError: a sequence for a model without tokens, or a loss in chunks where none is known.
    """
    model = source.at(workload.sequence_length, workload.precision, kernels)
    return in_chunks(model, workload.loss_chunks)
