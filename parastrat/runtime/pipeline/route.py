"""The way of a forward through the parts of a module, and which tensors cross each place on it.

A part is a block of a stack, or the largest module beside them: an embedding, a norm, a head. A call that
reads parameters, or what such calls returned, is an event. What the forward does between events costs
little; every stage does it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec

from parastrat.runtime.blocks import stacked_blocks
from parastrat.runtime.pipeline.attributes import Kept
from parastrat.runtime.pipeline.flow import Kind, Source

#: modules that only hold others
_NEVER_CALLED = (nn.ModuleList, nn.ModuleDict)
_PLAIN = int | float | bool | str | None | torch.dtype | torch.device | torch.Size


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """What is known of a tensor before it is there."""

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool
    #: the forward writes to it after it was returned
    changed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call of a part that reads parameters, or what comes from them."""

    part: str
    spec: TreeSpec
    #: what it returns: the shape of a tensor, or a plain value
    leaves: tuple[Any, ...]
    #: outputs and parameters that it is computed from
    needs: frozenset[Source]
    flops: float

    @property
    def tensors(self) -> list[TensorShape]:
        return [leaf for leaf in self.leaves if isinstance(leaf, TensorShape)]

    @property
    def opaque(self) -> bool:
        """It returns objects that another process cannot be given."""
        return not all(isinstance(leaf, TensorShape | _PLAIN) for leaf in self.leaves)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """All calls of parts in one forward."""

    #: name of each part that is called, and the index of its event; None for what only reads inputs
    calls: tuple[tuple[str, int | None], ...]
    events: tuple[Event, ...]
    #: what the forward's output is computed from, beside calls
    end: frozenset[Source]
    #: what modules keep in attributes, where a loss may read it
    kept: tuple[Kept, ...] = ()

    def crossing(self, after: int) -> tuple[Source, ...]:
        """Return the outputs of the first ``after`` events that later ones read, in order."""
        late = frozenset[Source]().union(*(event.needs for event in self.events[after:]), self.end)
        return tuple(
            sorted(source for source in late if source.kind is not Kind.PARAMETER and source.event < after)
        )

    def kept_before(self, last: int) -> Iterator[Kept]:
        """Yield what the first events keep that the last stage, which begins behind them, does not know."""
        crossing = frozenset(self.crossing(last)) if self.kept else frozenset[Source]()
        return (each for each in self.kept if each.is_of_stages_before(last, crossing))

    def why_not(self, after: int) -> str | None:
        """Return why the forward cannot be cut behind this many events; None if it can."""
        for source in self.crossing(after):
            event = self.events[source.event]
            if source.kind is Kind.INSIDE:
                return f"what {event.part} computes inside is used by later blocks"
            if event.opaque:
                return f"{event.part} returns an object that cannot be sent"
        return None

    def shape_of(self, source: Source) -> TensorShape:
        return self.events[source.event].tensors[source.index]


def parts_of(module: nn.Module) -> dict[str, nn.Module]:
    """Return the parts by name: blocks of stacks, and the largest modules that hold none."""
    blocks = {id(block) for block in stacked_blocks(module).modules}
    parts: dict[str, nn.Module] = {}

    def visit(name: str, part: nn.Module, *, root: bool) -> None:
        children = list(part.named_children())
        whole = id(part) in blocks or not children
        around = any(id(other) in blocks for other in part.modules())
        if not whole and (around or isinstance(part, _NEVER_CALLED) or (root and not blocks)):
            for key, child in children:
                visit(f"{name}.{key}" if name else key, child, root=root and len(children) == 1)
        elif name and id(part) not in map(id, parts.values()):
            parts[name] = part

    visit("", module, root=True)
    return parts
