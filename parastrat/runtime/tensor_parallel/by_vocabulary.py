"""Logits that the tensor-parallel ranks divide by vocabulary (loss parallelism)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.runtime.communication.flow import gather
from parastrat.runtime.logits import Entropy, Whole, logits
from parastrat.runtime.tensor_parallel.cross_entropy import cross_entropies

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh


def by_vocabulary(own: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return the logits of which this rank has its share of the vocabulary: gathered, or to be gathered."""
    shape = (*own.shape[:-1], own.shape[-1] * mesh.size())
    return logits(own, _ByVocabulary(mesh=mesh, shape=shape))


@dataclass(slots=True, kw_only=True)
class _ByVocabulary(Whole):
    """Logits whose last dimension is divided."""

    mesh: DeviceMesh

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        return gather(own, self.mesh)

    def share(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        if not shape or shape[-1] != self.shape[-1]:
            return None
        return (*shape[:-1], shape[-1] // self.mesh.size())

    def reads(self, index: tuple[Any, ...], dims: int) -> bool:
        reaches = Ellipsis in index or len(index) == dims
        return not reaches or index[-1] is Ellipsis or index[-1] == slice(None)

    def cross_entropy(self, own: torch.Tensor, asked: Entropy) -> torch.Tensor | None:
        if asked.smoothing:
            return None
        losses = cross_entropies(own, asked.target, asked.ignored, self.mesh)
        if asked.reduction == "mean":
            mean: torch.Tensor = losses.sum() / (asked.target != asked.ignored).sum()
            return mean
        return losses.sum() if asked.reduction == "sum" else losses
