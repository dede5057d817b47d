"""Losses that read weights, or what modules keep: only the last stage's are where the loss is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from parastrat.errors import WrapError
from parastrat.plan import PipelineSchedule
from parastrat.runtime.tensors.leaves import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable

    from parastrat.runtime.pipeline.attributes import Kept
    from parastrat.runtime.pipeline.prune import Absent

_HINT = (
    "put it into the forward of the module that holds it, and return it with the output; leave decay "
    "of weights to the optimizer; or plan --pp 1"
)
#: which all others that list parameters call
_LISTS = "named_parameters"
_ABSENT = object()


class OwnWeights:
    """Knows what a rank lacks.

    Args:
        absent: with its stand-ins in place.
        split: the schedule computes gradients of weights behind those of inputs, and only for weights
            that an input's way to the loss goes through.
    """

    def __init__(self, absent: Absent, *, split: bool) -> None:
        owners = {owner for slot in absent.slots for owner, _ in slot.owners}
        self._module = absent.module
        self._weights = {
            id(each): f"a weight of shape {tuple(each.shape)} that another stage holds"
            for each in absent.stand_ins
        }
        self._split = split
        #: that are owners, or hold one
        self._around = [part for part in absent.module.modules() if not owners.isdisjoint(part.modules())]

    @contextmanager
    def alone(self, kept: Iterable[Kept], device: torch.device) -> Iterator[None]:
        """Refuse that a loss inside reads others, or lists parameters of which only some are there.

        Args:
            kept: attributes that stages before this one compute.
            device: where tensors are.

        Raises:
            WrapError: what stands in for weights would give another loss, and other gradients.
        """
        stand_ins = dict(self._weights)
        with ExitStack() as stack:
            for part in self._around:
                stack.enter_context(_set(part, _LISTS, _refuse_list))
            for each in kept:
                value = each.stand_in(device)
                said = f"{each.part}.{each.name}".lstrip(".") + ", which another stage computes"
                stand_ins |= {id(leaf): said for leaf in tensors_in(value)}
                stack.enter_context(_set(self._module.get_submodule(each.part), each.name, value))
            stack.enter_context(_Reading(stand_ins, split=self._split))
            yield


@contextmanager
def _set(part: nn.Module, name: str, value: Any) -> Iterator[None]:
    """Let a module have an attribute for a while."""
    before = vars(part).get(name, _ABSENT)
    vars(part)[name] = value
    try:
        yield
    finally:
        vars(part).pop(name)
        if before is not _ABSENT:
            vars(part)[name] = before


class _Reading(TorchFunctionMode):
    """Looks at what functions are given."""

    def __init__(self, stand_ins: dict[int, str], *, split: bool) -> None:
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
                    f"the loss reads {self._stand_ins[id(leaf)]}: it has no values here", hint=_HINT
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
