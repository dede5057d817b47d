"""Losses that add up over samples, found by what they return for some samples and for parts of them.

Gradients are averaged over micro-batches and ranks, as those of a mean; of a sum they would be too small by
their number, without a word.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.errors import UsageError
from parastrat.runtime.tensors.batches import IGNORED, target_count
from parastrat.runtime.training.counted import setting_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.runtime.wrapped import Wrapped

#: samples that are tried: few, so that no more memory is taken than by the loss itself
_TRIED = 4
#: of a loss, by which its parts may add up to another: short formats keep three digits
_ROUNDING = 1e-2
#: of a loss, by which at least it is no mean of its parts: of two alike, a sum is off by half of itself
_NO_MEAN = 0.2
#: how deep calls are looked through for what adds up
_DEPTH = 3
#: with which losses refuse other numbers of samples than they were made for
_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, AssertionError)


def refuse_sum(wrapping: Wrapped, loss_fn: Any, output: Any, targets: Any) -> None:
    """Refuse a loss function that adds up over samples, where the batch is cut into parts.

    It is tried once, on the first micro-batch, if that has two samples and its code adds something up. The
    parts of a sum add up to the whole however it is cut; a mean, or a loss over pairs of samples, does not.

    Args:
        wrapping: of the model.
        loss_fn: as it was given.
        output: what the model returned for a micro-batch.
        targets: beside it, on its device.

    Raises:
        UsageError: it is a sum.
    """
    plan = wrapping.plan
    function = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    known_by = getattr(function, "__code__", type(function))
    if plan.mesh.dp * plan.gradient_accumulation_steps == 1 or known_by in wrapping.tried:
        return
    wrapping.tried.add(known_by)
    leaves = tree_leaves((output, targets))
    if not all(type(leaf) is torch.Tensor and leaf.ndim for leaf in leaves) or not _adds(function, _DEPTH):
        return  # divided, fake, or with more than samples in it
    samples = {leaf.shape[0] for leaf in leaves}
    if len(samples) > 1 or min(samples) < 2:
        return
    tried = min(*samples, _TRIED)
    ignored = setting_of(loss_fn, "ignore_index")
    ignored = IGNORED if ignored is None else ignored

    def of(start: int, end: int) -> tuple[float, int]:
        own = tree_map(lambda leaf: leaf[start:end].detach(), (output, targets))
        return float(loss_fn(*own)), target_count(own[1], ignored)

    device = wrapping.device
    forked = torch.random.fork_rng([device] if device.type != "cpu" else [], device_type=device.type)
    with torch.no_grad(), forked, suppress(*_REFUSALS):
        whole, _ = of(0, tried)
        # a loss over pairs may add up at one place
        if all(_add_up(whole, of(0, place), of(place, tried)) for place in {1, tried // 2}):
            raise UsageError(
                "loss_fn adds up over samples: micro-batches and ranks need a mean",
                hint="divide by the number of targets, as .mean() does in place of .sum()",
            )


def _add_up(whole: float, first: tuple[float, int], second: tuple[float, int]) -> bool:
    """Return whether a loss is the sum of those of its parts, and not their mean over targets."""
    (one, few), (other, rest) = first, second
    if not few or not rest:
        return False
    mean = (one * few + other * rest) / (few + rest)
    return abs(whole - one - other) < _ROUNDING * abs(whole) and abs(whole - mean) > _NO_MEAN * abs(whole)


def _adds(function: Any, depth: int) -> bool:
    """Return whether the code of a function, or of what it calls, names a sum."""
    if isinstance(function, nn.Module):
        return any(_adds(type(part).forward, depth) for part in function.modules())
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    if code is None or str(getattr(function, "__module__", "")).partition(".")[0] == "torch":
        return False
    if "sum" in (*code.co_names, *(each for each in code.co_consts if isinstance(each, str))):
        return True
    return depth > 0 and any(_adds(called, depth - 1) for called in _called(function, code.co_names))


def _called(function: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Yield the functions and modules that the names in a function's code may stand for."""
    known = inspect.getclosurevars(function)
    found = [*known.globals.values(), *known.nonlocals.values()]
    found += [getattr(each, name, None) for each in found if inspect.ismodule(each) for name in names]
    yield from (each for each in found if isinstance(each, nn.Module) or inspect.isfunction(each))
