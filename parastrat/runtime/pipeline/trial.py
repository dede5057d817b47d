"""Emitted stages on fake tensors, one after the other: do they compute what the whole model computes?

Every operator's result has a number that stands for the computation: the last stage's output must have that
of the whole model.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.runtime.building import described
from parastrat.runtime.pipeline.flow import Flow
from parastrat.runtime.pipeline.passing import NotStagedError
from parastrat.runtime.tensors.slots import slots_of
from parastrat.runtime.tracing.fake_mode import FakeMode
from parastrat.runtime.tracing.fakes import constant_names, fake_module, gpu_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from parastrat.emit.staging import Sent, Staging
    from parastrat.runtime.pipeline.written import Draft

#: where one tensor passes
_ONLY = ("", 0)


def tried(draft: Draft, staging: Staging, names: Mapping[str, Any]) -> Staging:
    """Run emitted code on fake tensors; return the staging with what that showed.

    Args:
        draft: of the model.
        staging: what was emitted.
        names: the module that the emitted text is.

    Raises:
        NotStagedError: the stages do not compute what the model computes.
    """
    trial = _Trial(draft, staging, names)
    for index in range(len(staging.stages)):
        trial.run(index)
    if trial.result != draft.expected:
        raise NotStagedError("tried on fake tensors, its stages do not compute what it computes as a whole")
    return (
        staging
        if staging.alike is None
        else replace(staging, alike=replace(staging.alike, is_view=trial.is_view))
    )


class _Trial:
    """Stages on fake tensors, one after the other."""

    def __init__(self, draft: Draft, staging: Staging, names: Mapping[str, Any]) -> None:
        self._draft, self._staging, self._names = draft, staging, names
        self._mode = FakeMode()
        self._known = {alias: slot.name for slot in slots_of(draft.module) for alias in slot.names}
        self._constants = {name: index for index, name in enumerate(constant_names(draft.module))}
        #: by all stages before, each with its number
        self._sent: dict[Sent, tuple[torch.Tensor, int]] = {}
        #: torch detaches in place what is sent, and Gloo takes no gaps
        self.is_view = False
        #: what was computed so far
        self.result: tuple[Hashable, ...] = ()
        if staging.alike is None:
            self._returned = _told(
                lambda: names["returned_by"](draft.module, draft.inputs, torch.device("cpu"))
            )

    def run(self, index: int) -> None:
        """Run one stage on what those before it sent."""
        draft, staging = self._draft, self._staging
        stage = self._names["Stage"](copy.deepcopy(draft.module), index)
        if staging.alike is None:
            stage.expect(self._returned, torch.device("cpu"))
        constants, flow = constant_names(stage), Flow(draft.numbers, _no_weight)
        with (
            fake_module(stage, self._mode, draft.setting.dtype) as (parameters, others),
            gpu_kernels(),
            self._mode,
        ):
            for name, parameter in parameters.items():
                flow.name(parameter, ("parameter", self._known[name.removeprefix("model.")]))
            for name, tensor in zip(constants, others, strict=True):
                place = self._constants.get(name.removeprefix("model."))
                # weights of other stages are left as tensors without values
                flow.name(tensor, ("absent", name) if place is None else ("constant", place))
            inputs = self._inputs(flow)
            with draft.setting.active(), flow:
                output = _told(lambda: stage(*self._received(index, inputs, flow), inputs=inputs))
            if stage.is_last:
                self.result = flow.numbers_of(output)
                return
            # what is sent may be copied: another computation by its number
            for sent, tensor in (stage.sent if staging.alike is None else {_ONLY: stage.sent}).items():
                self._sent[sent] = tensor, flow.held(tensor).number
                self.is_view |= tensor._is_view() or not tensor.is_contiguous()  # noqa: SLF001  (no other way)

    def _inputs(self, flow: Flow) -> Any:
        """Return the micro-batch on fake tensors, in the format that FSDP2 casts it to."""
        short = self._draft.setting.dtype
        inputs = tree_map(
            lambda leaf: torch.empty_like(
                leaf, device="cpu", dtype=short if leaf.is_floating_point() else leaf.dtype
            ),
            self._draft.inputs,
        )
        for place, leaf in enumerate(tree_leaves(inputs)):
            flow.name(leaf, ("input", place))
        return inputs

    def _received(self, index: int, inputs: Any, flow: Flow) -> list[torch.Tensor]:
        """Return what a stage is given of those before it; the first gets what it does not read."""
        staging, received = self._staging, []
        if not index:
            return tree_leaves(inputs)[:1]
        for sent in (_ONLY,) if staging.alike else staging.received[index]:
            tensor, number = self._sent[sent]
            received.append(tensor.detach().requires_grad_(tensor.requires_grad))
            flow.held(received[-1]).number = number
        return received


def _told(run: Callable[[], Any]) -> Any:
    """Return what emitted code returns."""
    try:
        return run()
    except Exception as error:
        raise NotStagedError(f"without the parts of other stages it raised {described(error)}") from error


def _no_weight(_tensor: torch.Tensor) -> bool:
    return False
