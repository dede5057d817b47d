"""What is proven of a script's model: on tensors of its own, past what makes the script's fake."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn, overrides
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from parastrat.runtime import apply
from parastrat.runtime.choosing import choose_divisions
from parastrat.runtime.pipeline import build, pipelined, staged
from parastrat.runtime.pipeline.build import cut_of
from parastrat.runtime.pipeline.following import route_of
from parastrat.runtime.tensors.slots import without_data
from parastrat.runtime.tracing.example_inputs import shapes_alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.runtime.first_values.replay import Record
    from parastrat.runtime.pipeline.example import Example
    from parastrat.runtime.wrapping import Wrapping

_HOST = torch.device("cpu")


@contextmanager
def proofs_apart() -> Iterator[None]:
    """Let layouts be chosen, and models be cut and followed, as in a dry run of a plan.

    Entered before anything makes tensors or parameters fake.
    """
    parameter, swap = nn.Parameter.__new__, torch.utils.swap_tensors

    @contextmanager
    def apart() -> Iterator[None]:
        with (
            _disable_current_modes(),
            _without_function_modes(),
            patch.object(nn.Parameter, "__new__", parameter),
            patch.object(torch.utils, "swap_tensors", swap),
        ):
            yield

    def chosen(
        module: nn.Module,
        wrapping: Wrapping,
        *,
        sample_inputs: Any = None,
        record: Record | None = None,
    ) -> None:
        device, wrapping.device = wrapping.device, _HOST
        try:
            with apart():
                real = _real(sample_inputs)
                choose_divisions(without_data(module), wrapping, sample_inputs=real, record=record)
        finally:
            wrapping.device = device

    def cut_apart(skeleton: nn.Module, example: Example, *more: Any) -> Any:
        with apart():
            return cut_of(skeleton, replace(example, inputs=_told(example.inputs)), *more)

    def followed(module: nn.Module, inputs: Any, setting: Any) -> Any:
        with apart():
            return route_of(module, _told(inputs), setting)

    with ExitStack() as stack:
        stack.enter_context(patch.object(apply, "choose_divisions", chosen))
        stack.enter_context(patch.object(build, "cut_of", cut_apart))
        stack.enter_context(patch.object(pipelined, "route_of", followed))
        # what stages return here has no values
        stack.enter_context(patch.object(staged, "without_values", lambda _tensor: False))
        yield


@contextmanager
def _without_function_modes() -> Iterator[None]:
    """Let calls of functions be what they are, as operators are by then."""
    modes: Any = overrides
    taken = []
    while modes._get_current_function_mode() is not None:  # noqa: SLF001  (torch has no public way)
        taken.append(modes._pop_mode())  # noqa: SLF001  (as above)
    try:
        yield
    finally:
        for mode in reversed(taken):
            modes._push_mode(mode)  # noqa: SLF001  (as above)


def _told(inputs: Any) -> Any:
    """Return inputs that code without fake tensors takes: shapes alone of those that have no values."""
    return tree_map(lambda leaf: shapes_alone(leaf) if isinstance(leaf, FakeTensor) else leaf, inputs)


def _real(inputs: Any) -> Any:
    """Return inputs with values in the place of those that are not there."""

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, FakeTensor):
            return leaf
        if leaf.dtype.is_floating_point:
            return torch.randn(leaf.shape, dtype=leaf.dtype)
        return torch.zeros(leaf.shape, dtype=leaf.dtype)

    return tree_map(real, inputs)
