"""Proof that the stages, one after the other, compute what the whole module computes.

Both run on fake tensors, and every operator's result has a number that stands for the computation. The
stages' output must have the numbers of the module's: then it is the same computation, on any values and
with the same gradients. A parameter that a stage does not hold, or a tensor that does not cross, has a
number that occurs nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.pipeline.border import Border
from parastrat.runtime.pipeline.cut import Span
from parastrat.runtime.pipeline.flow import Flow, Source
from parastrat.runtime.pipeline.following import Trace, Whole
from parastrat.runtime.pipeline.route import Route, TensorShape, parts_of
from parastrat.runtime.pipeline.staged import Passage, Stage
from parastrat.runtime.untouched import untouched


def prove(whole: Whole, spans: tuple[Span, ...], owners: dict[str, tuple[int, ...]]) -> None:
    """Check the stages against the module.

    Raises:
        WrapError: if they compute something else.
    """
    module, output = whole.module, whole.output
    expected = whole.flow.numbers_of(output)
    if not expected:
        raise WrapError(
            f"{type(module).__name__} returns {type(output).__name__}, in which no tensor was found to "
            "compare",
            hint="return tensors, alone or in tuples, dicts or dataclasses, or plan --pp 1",
        )
    known: dict[Source, tuple[torch.Tensor, int]] = {}
    reads_earlier = False
    for span in spans:
        held = frozenset(name for name, stages in owners.items() if span.stage in stages)
        trace = whole.begin(held)
        output = _staged(trace, whole.route, span, known)
        reads_earlier |= trace.flow.reads_earlier
    if trace.flow.numbers_of(output) != expected:
        raise _otherwise(module, reads_earlier=reads_earlier)


def _otherwise(module: nn.Module, *, reads_earlier: bool) -> WrapError:
    """Return why the stages compute something else, as far as can be seen."""
    hooked = [name for name, part in parts_of(module).items() if _has_hooks(part)]
    if hooked:
        return WrapError(
            f"{hooked[0]} has a forward hook, which would run on every stage and change what it sends",
            hint="move what the hook does into forward, or plan --pp 1",
        )
    if reads_earlier:
        return WrapError(
            f"{type(module).__name__}'s code keeps a table, outside of its file, that was made when the "
            "forward was followed",
            hint="keep tables in buffers or attributes of the module, or plan --pp 1",
        )
    return WrapError(
        f"the stages of {type(module).__name__} do not compute what it computes as a whole",
        hint="plan --pp 1; please report the model: this should have been seen when it was cut",
    )


def _has_hooks(part: nn.Module) -> bool:
    return bool(part._forward_hooks or part._forward_pre_hooks)  # noqa: SLF001  (no public accessor)


def _staged(trace: Trace, route: Route, span: Span, known: dict[Source, tuple[torch.Tensor, int]]) -> Any:
    """Run one stage on fake tensors; note what it sends, with its numbers."""
    flow, received = trace.flow, {}
    for source in route.crossing(span.begin) if span.stage else ():
        received[source], number = known[source]
        flow.held(received[source]).number = number
    stage = Stage(trace.module, trace.module.forward, tuple(trace.parts))
    passage = Passage(route=route, span=span, received=received, border=_Watched(flow))
    try:
        with trace.setting.active(), untouched(trace.module), flow:
            output = stage.run(trace.batch, passage)
    finally:
        stage.close()
    if not span.is_last:
        sent = zip(route.crossing(span.end), output, strict=True)
        known.update({source: (tensor, flow.held(tensor).number) for source, tensor in sent})
    return output


class _Watched(Border):
    """Keeps the numbers of what crosses, and gives those of stubs to nothing else."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow

    def stub(self, shape: TensorShape) -> torch.Tensor:
        made = torch.empty(shape.shape, dtype=shape.dtype)
        self._flow.name(made, ("stub", id(made), id(self)))
        return made

    def entering(self, tensor: torch.Tensor, shape: TensorShape) -> torch.Tensor:
        return self._copied(tensor) if shape.changed else tensor

    def leaving(self, tensor: torch.Tensor, shape: TensorShape) -> torch.Tensor:
        return self._copied(tensor).detach().requires_grad_(shape.requires_grad)

    def passing(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._copied(tensor).detach().requires_grad_(tensor.requires_grad)

    def _copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor laid out alike, in a storage of its own with the same number."""
        elements = tensor.untyped_storage().nbytes() // tensor.itemsize
        base = torch.empty(elements, dtype=tensor.dtype)
        self._flow.held(base).number = self._flow.held(tensor).number
        return base.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
