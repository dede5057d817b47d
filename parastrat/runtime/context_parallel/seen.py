"""What blocks are given and do in a forward, as far as it tells how their positions may be divided."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import keystr, tree_flatten_with_path

from parastrat.runtime.context_parallel.attention import arguments
from parastrat.runtime.context_parallel.counting import Ends, Noting
from parastrat.runtime.context_parallel.stream import SEQUENCE, STREAM_DIMS
from parastrat.runtime.tensors.batches import called


@dataclass(slots=True, kw_only=True)
class Seen:
    """One forward of a model's blocks."""

    #: by where tensors stand in a block's arguments
    shapes: dict[str, torch.Size] = field(default_factory=dict)
    #: of each block, up to where its calls count
    ends: list[Ends] = field(default_factory=list)
    attentions: int = 0
    #: of which are causal by themselves, without a mask
    causal: int = 0
    #: the first of the blocks' buffers that the forward changed; "": none
    changed: str = ""

    @property
    def stream(self) -> str:
        """Where the first tensor of samples, positions and features stands; "" without any."""
        return next((place for place, shape in self.shapes.items() if len(shape) == STREAM_DIMS), "")

    @property
    def length(self) -> int:
        """How many positions the blocks are given; 0 without a stream."""
        return self.shapes[self.stream][SEQUENCE] if self.stream else 0


def seen_in(module: nn.Module, blocks: tuple[str, ...], inputs: Any) -> Seen:
    """Return what is seen in a forward of a copy of a module, without gradients.

    Args:
        module: which stays as it is.
        blocks: the names of those that are looked into.
        inputs: a batch.
    """
    seen, trial = Seen(), copy.deepcopy(module)
    for name in blocks:
        block = trial.get_submodule(name)
        block.forward = wraps(block.forward)(partial(_noted, seen, block.forward))
    with torch.no_grad():
        called(trial, inputs)
    before = dict(module.named_buffers())
    inside = tuple(f"{name}." for name in blocks)
    for name, buffer in trial.named_buffers():
        if name.startswith(inside) and not (name in before and torch.equal(buffer, before[name])):
            seen.changed = seen.changed or name
    return seen


def _noted(seen: Seen, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    seen.shapes.update((place, leaf.shape) for place, leaf in _tensors(args, kwargs))
    noting = Noting()
    with _Attentions(seen), noting:
        output = forward(*args, **kwargs)
    seen.ends.append(noting.ends)
    return output


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, leaf in tree_flatten_with_path((args, kwargs))[0]:
        if isinstance(leaf, torch.Tensor):
            yield keystr(path), leaf


class _Attentions(TorchFunctionMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is scaled_dot_product_attention:
            self._seen.attentions += 1
            self._seen.causal += bool(arguments(args, kwargs or {}).get("is_causal"))
        return func(*args, **(kwargs or {}))
