"""Values that a forward reads of what sequence parallelism divides.

Each rank would read them of its share of the positions, and may choose another way than the others, or than
one device: a proof sees it only where the ways of its sample differ.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parastrat.runtime.tensor_parallel.by_values import reads_values
from parastrat.runtime.tensor_parallel.sequence import NoStreamError, activations, gathered_homes
from parastrat.runtime.tensors.batches import called

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch._ops import OpOverload

    from parastrat.runtime.tensor_parallel.extent import Extent
    from parastrat.runtime.tensor_parallel.layout import Layout


def check_no_values(module: nn.Module, inputs: Any, layout: Layout, extent: Extent) -> None:
    """Check that a forward reads no values of the stream of blocks, but where positions are gathered.

    Args:
        module: a small copy of the model; its forward is run on another one.
        inputs: a batch.
        layout: streamed.
        extent: the copy's blocks.

    Raises:
        NoStreamError: naming the module that reads some.
    """
    trial = copy.deepcopy(module)
    reading = _Reading(blocks=frozenset(extent.names), whole=frozenset(gathered_homes(layout, extent)))
    for name, part in trial.named_modules():
        part.register_forward_pre_hook(partial(reading.enter, name), with_kwargs=True)
        part.register_forward_hook(reading.leave)
    with torch.no_grad(), reading:
        called(trial, inputs)
    if reading.reader is not None:
        reader = type(module.get_submodule(reading.reader)).__name__
        raise NoStreamError(
            f"{reader} reads values of the stream, of which each rank has some positions alone"
        )


class _Reading(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Follows what is made of the stream, and notes the first module that reads values of it.

    Args:
        blocks: names of the modules that the stream goes through.
        whole: names of those that are given all positions.
    """

    def __init__(self, blocks: frozenset[str], whole: frozenset[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._blocks, self._whole = blocks, whole
        self._names: list[str] = []
        #: by id, which holds as long as the tensor is kept
        self._stream: dict[int, torch.Tensor] = {}
        self.reader: str | None = None

    def enter(self, name: str, _part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Begin a module's forward."""
        self._names.append(name)
        if name in self._blocks:
            self._follow(activations((args, kwargs)))

    def leave(self, part: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """End it; the stream may begin behind an embedding."""
        self._names.pop()
        if isinstance(part, nn.Embedding):
            self._follow(activations(output))

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator."""
        follows = any(id(leaf) in self._stream for leaf in tree_leaves((args, kwargs)))
        if follows and reads_values(func, args) and self._whole.isdisjoint(self._names):
            self.reader = self._names[-1] if self.reader is None else self.reader
        output = func(*args, **(kwargs or {}))
        if follows:
            self._follow(leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor))
        return output

    def _follow(self, tensors: Iterable[torch.Tensor]) -> None:
        self._stream.update((id(each), each) for each in tensors)
