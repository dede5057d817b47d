"""What modules keep in attributes as they run: a loss finds there what its own stage computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from parastrat.runtime.pipeline.flow import Flow, Kind, Source
from parastrat.runtime.tensors.kept import keeping
from parastrat.runtime.tensors.leaves import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn
    from torch.utils._pytree import TreeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One attribute with tensors that the forward computed."""

    #: path of the module
    part: str
    name: str
    #: what they were computed from
    sources: frozenset[Source]
    #: shapes and formats of tensors among its values
    leaves: tuple[Any, ...]
    spec: TreeSpec

    def is_of_stages_before(self, begin: int, crossing: frozenset[Source]) -> bool:
        """Return whether it is computed before the last stage, of which that knows what crosses.

        Args:
            begin: the first event of the last stage.
            crossing: what it is sent.
        """
        outputs = [source for source in self.sources if source.kind is not Kind.PARAMETER]
        return any(source.event < begin and source not in crossing for source in outputs)

    def stand_in(self, device: torch.device) -> Any:
        """Return such a value with zeros, which take no memory."""
        values = [
            torch.zeros((), dtype=leaf.dtype, device=device).expand(leaf.shape)
            if isinstance(leaf, _Shape)
            else leaf
            for leaf in self.leaves
        ]
        return tree_unflatten(values, self.spec)


@dataclass(frozen=True, slots=True)
class _Shape:
    shape: torch.Size
    dtype: torch.dtype


def kept_of(module: nn.Module, flow: Flow) -> Iterator[Kept]:
    """Yield what the modules of a model keep behind its forward, on fake tensors; of buffers nothing."""
    for part, name, value in keeping(module):
        if name in module.get_submodule(part)._buffers or not tensors_in(value):  # noqa: SLF001  (no public accessor)
            continue
        leaves, spec = tree_flatten(value)
        shapes = (
            _Shape(leaf.shape, leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        )
        sources = flow.sources_of(value)
        yield Kept(part=part, name=name, sources=sources, leaves=tuple(shapes), spec=spec)
