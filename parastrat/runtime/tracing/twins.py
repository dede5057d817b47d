"""Repeated blocks that are equal need not all run: two of a kind tell what the others do.

A block that is left out hands a copy of its input on; what it keeps and computes is its twin's. Equal are
blocks of one class with the same parts, sizes and settings, called with inputs of the same shapes, to which
gradients come, or to none of which one comes: what nothing leads back to goes before the forward is over.
From one and two layers, what a deep transformer keeps follows exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from parastrat.runtime.blocks import Blocks
from parastrat.runtime.tensors.leaves import tree_tensors
from parastrat.runtime.tracing.recorded import Allocation
from parastrat.runtime.tracing.tracker import Tracker

#: how many of a kind run; the second has all its neighbours alike
_RUNNING = 2
#: attributes that number the layers; what they change, other attributes or operators show
_NUMBERS = re.compile(r"(.*_)?(idx|index|layer_id|layer_number)")

#: stands for the tensor in a form
_HERE = object()

_PLAIN = (bool, int, float, str, torch.dtype, torch.Size)


@dataclass(slots=True, kw_only=True)
class _Kind:
    """Calls of equal blocks with equal inputs."""

    #: the segments that ran
    segments: list[int] = field(default_factory=list)
    #: how the output is built, if it is one tensor like the first input; None if it is not
    form: tuple[list[Any], TreeSpec] | None = None
    #: the last one's output
    output: Allocation | None = None


def unequal(tracker: Tracker) -> bool:
    """Return whether gradients come to a block and not to its twin, or to the twin alone."""
    reached = tracker.behind.reached_segments
    return any(
        segment.twin is not None and (index in reached) != (segment.twin in reached)
        for index, segment in enumerate(tracker.segments)
    )


@contextmanager
def two_of_a_kind(
    blocks: Blocks, tracker: Tracker, reached: AbstractSet[int] = frozenset()
) -> Iterator[None]:
    """Let every further block of a kind hand its input on.

    Args:
        blocks: the repeated ones.
        tracker: which follows the step.
        reached: segments to which gradients come, where a step before this one told that it makes kinds.
    """
    kinds: dict[Hashable, _Kind] = {}
    with ExitStack() as stack:
        for name, block in zip(blocks.names, blocks.modules, strict=True):
            stack.callback(_restored(block))
            vars(block)["forward"] = _sparing(name, block, kinds, tracker, reached)
        yield
    _fill_in(tracker)


def _restored(block: nn.Module) -> Callable[[], None]:
    own = vars(block).get("forward")

    def restore() -> None:
        if own is None:
            del vars(block)["forward"]
        else:
            vars(block)["forward"] = own

    return restore


def _sparing(
    name: str, block: nn.Module, kinds: dict[Hashable, _Kind], tracker: Tracker, reached: AbstractSet[int]
) -> Callable[..., Any]:
    forward, marks = block.forward, _marks(block)
    passed: list[bool] = []

    def run_or_pass(*args: Any, **kwargs: Any) -> Any:
        if tracker.segments[tracker.current].block != name:
            # its forward was called without its hooks, which begin a segment of its own
            return forward(*args, **kwargs)
        leaves, _ = tree_flatten((args, kwargs))
        key = (marks, tuple(map(_mark, leaves)), tracker.current in reached)
        kind = kinds.setdefault(key, _Kind())
        first = next(iter(tree_tensors(leaves)), None)
        if tracker.in_backward:  # the module checkpoints it: once more as in the forward
            return _passed_on(kind, first, tracker) if passed and passed[-1] else forward(*args, **kwargs)
        passed.append(len(kind.segments) >= _RUNNING and kind.form is not None and first is not None)
        if passed[-1]:
            segment = tracker.segments[tracker.current]
            segment.twin, segment.twin_output = kind.segments[-1], kind.output
            return _passed_on(kind, first, tracker)
        output = forward(*args, **kwargs)
        kind.segments.append(tracker.current)
        kind.form = _form(output, first)
        if kind.form is not None:
            kind.output = next(map(tracker.allocation, tree_tensors(output)))
        return output

    return run_or_pass


def _passed_on(kind: _Kind, first: torch.Tensor | None, tracker: Tracker) -> Any:
    """Return an output of this kind, with a copy of the input in its place."""
    if kind.form is None or first is None:
        return first
    parts, spec = kind.form
    reached = partial(tracker.behind.reached_segments.add, tracker.current)
    copied: Any = _Copy.apply(first, reached)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return tree_unflatten([copied if part is _HERE else part for part in parts], spec)


class _Copy(torch.autograd.Function):
    """A copy that keeps nothing for backward, but asks for it: a checkpoint around it keeps its inputs.

    It tells when a gradient reaches it.
    """

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, reached: Callable[[], None]) -> torch.Tensor:
        ctx.reached = reached
        ctx.save_for_backward(tensor.new_empty(0))
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        _nothing = ctx.saved_tensors
        ctx.reached()
        return gradient, None


def _form(output: Any, first: torch.Tensor | None) -> tuple[list[Any], TreeSpec] | None:
    """Return how to build an output like this one from an input; None if it holds anything else."""
    leaves, spec = tree_flatten(output)
    tensors = tree_tensors(output)
    if first is None or len(tensors) != 1:
        return None
    (only,) = tensors
    if (only.shape, only.dtype, only.requires_grad) != (first.shape, first.dtype, first.requires_grad):
        return None
    return [_HERE if leaf is only else leaf for leaf in leaves], spec


def _marks(block: nn.Module) -> Hashable:
    """Return all that decides what a block does, but for values of tensors."""
    return tuple(
        (
            name,
            type(part),
            tuple((key, _mark(value)) for key, value in sorted(_settings(part).items())),
            tuple((key, _mark(value)) for key, value in part.named_parameters(recurse=False)),
            tuple((key, _mark(value)) for key, value in part.named_buffers(recurse=False)),
        )
        for name, part in block.named_modules()
    )


def _settings(part: nn.Module) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(part).items()
        if not key.startswith("_") and not _NUMBERS.fullmatch(key)
    }


def _mark(value: Any) -> Hashable:
    """Return something equal for values that mean the same; objects of other classes equal themselves."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype, value.requires_grad
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_mark, value))
    return type(value), id(value)


def _fill_in(tracker: Tracker) -> None:
    """Give the segments of blocks that did not run what their twins did."""
    for segment in tracker.segments:
        if segment.twin is None:
            continue
        twin = tracker.segments[segment.twin]
        segment.calls, segment.again = twin.calls, twin.again
        segment.selective, segment.added_up = twin.selective, twin.added_up
        segment.awaited = twin.awaited
        inside = f"{twin.block}."
        segment.parameters = {
            f"{segment.block}.{name.removeprefix(inside)}" if name.startswith(inside) else name: None
            for name in twin.parameters
        }
