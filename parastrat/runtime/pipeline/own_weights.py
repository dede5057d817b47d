"""Losses that read weights: only the last stage's are on the rank that computes the loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from parastrat.errors import WrapError
from parastrat.plan import PipelineSchedule

if TYPE_CHECKING:
    from parastrat.runtime.pipeline.prune import Absent

_HINT = (
    "put it into the forward of the module that holds the weights, leave it to the optimizer, as weight "
    "decay, or plan --pp 1"
)
#: which all others that list parameters call
_LISTS = "named_parameters"


class OwnWeights:
    """Knows what a rank lacks.

    Args:
        absent: with its stand-ins in place.
        split: the schedule computes gradients of weights behind those of inputs, and only for weights
            that an input's way to the loss goes through.
    """

    def __init__(self, absent: Absent, *, split: bool) -> None:
        owners = {owner for slot in absent.slots for owner, _ in slot.owners}
        self._stand_ins = {id(vars(owner)[key]) for slot in absent.slots for owner, key in slot.owners}
        self._split = split
        #: that are owners, or hold one
        self._around = [part for part in absent.module.modules() if not owners.isdisjoint(part.modules())]

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse that a loss inside reads others, or lists parameters of which only some are there.

        Raises:
            WrapError: what stands in for weights would give another loss, and other gradients.
        """
        for part in self._around:
            vars(part)[_LISTS] = _refuse_list
        try:
            with _Reading(self._stand_ins, split=self._split):
                yield
        finally:
            for part in self._around:
                vars(part).pop(_LISTS, None)


class _Reading(TorchFunctionMode):
    """Looks at what functions are given."""

    def __init__(self, stand_ins: set[int], *, split: bool) -> None:
        super().__init__()
        self._stand_ins = stand_ins
        self._split = split

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):  # shapes and formats may be asked for
            self._check(tree_leaves((args, kwargs)))
        return result

    def _check(self, given: list[Any]) -> None:
        for leaf in given:
            if id(leaf) in self._stand_ins:
                raise WrapError(
                    f"the loss reads a weight of shape {tuple(leaf.shape)} that another stage holds: it "
                    "has no values here",
                    hint=_HINT,
                )
            if self._split and isinstance(leaf, nn.Parameter):
                raise WrapError(
                    f"the loss reads a weight of shape {tuple(leaf.shape)}, whose gradient a schedule that "
                    "splits backward would not compute",
                    hint=f"plan pp_schedule = {PipelineSchedule.INTERLEAVED.value}, or {_HINT}",
                )


def _refuse_list(*_args: Any, **_keywords: Any) -> NoReturn:
    raise WrapError(
        "the loss lists parameters of a model that is cut into stages: those of other stages are not there",
        hint=_HINT,
    )
