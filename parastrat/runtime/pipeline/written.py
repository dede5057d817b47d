"""A cut as a few lines of torch can say it, where they can; and the proof of those lines.

The lines run on fake tensors, stage after stage, and every operator's result has a number that stands for
the computation: the last stage's output must have that of the whole model.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from parastrat.emit.staging import StageParts, Staging
from parastrat.runtime.blocks import Blocks, has_routed_parts, repeated_blocks
from parastrat.runtime.buffers import has_changing_buffers
from parastrat.runtime.building import class_name, described
from parastrat.runtime.fakes import constant_names, fake_module, gpu_kernels
from parastrat.runtime.pipeline.build import cut_of, traced
from parastrat.runtime.pipeline.flow import Flow
from parastrat.runtime.pipeline.route import TensorShape, fakes_of
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.recompute import without_caches
from parastrat.runtime.slots import Slot, slots_of
from parastrat.runtime.tensor_parallel.dropout import drops
from parastrat.schedules import rank_of_stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.plan import Plan
    from parastrat.runtime.pipeline.cut import Cut, Span

#: names by which forwards are given what they should predict
_TARGETS = ("labels", "targets")


class NotStagedError(Exception):
    """A few lines do not say this pipeline; the message is the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What will be emitted, and what it must compute."""

    staging: Staging
    #: whole, on the meta device
    module: nn.Module
    setting: Setting
    #: a micro-batch
    inputs: torch.Tensor
    #: of all computations
    numbers: dict[Hashable, int]
    #: of the model's output
    expected: tuple[Hashable, ...]


def staged(module: nn.Module, plan: Plan, sample_inputs: Any) -> Draft:
    """Return how a module is cut into the plan's stages, as ``auto_parallelize`` cuts it.

    Args:
        module: whole, on the meta device; its caches are turned off.
        plan: with pp.
        sample_inputs: one micro-batch; None guesses it.

    Raises:
        WrapError: it cannot be cut.
        NotStagedError: the cut cannot be said in a few lines.
    """
    caches = without_caches(module)
    setting = Setting(precision=plan.precision, autocast=not plan.shards_parameters)
    blocks = repeated_blocks(module)
    if len(blocks.containers) != 1:
        raise NotStagedError(f"the model has {len(blocks.containers)} lists of several blocks, not one")
    if has_changing_buffers(module):
        raise NotStagedError("buffers of its checkpoint may change while it trains")
    cut = cut_of(module, sample_inputs, setting, plan)
    inputs = _only_input(module, traced(module, sample_inputs, setting)[0])
    passed, stages = _passed(cut, inputs), tuple(_stage(cut, span, blocks) for span in cut.spans)
    by_position = not inputs.is_floating_point() and passed.shape[: inputs.ndim] == inputs.shape
    names = [_names(stage, blocks.containers[0]) for stage in stages]
    _check_parameters(slots_of(module), names)
    numbers: dict[Hashable, int] = {}
    with fakes_of(module, inputs, setting, numbers) as begin:
        trace = begin(None)
        output, logits = _logits(trace.run()[1])
        expected = trace.flow.numbers_of(logits)
    staging = Staging(
        container=blocks.containers[0],
        blocks=blocks.count,
        stages=stages,
        sizes=tuple(passed.shape[inputs.ndim if by_position else 1 :]),
        by_position=by_position,
        dtype=str(passed.dtype).removeprefix("torch."),
        output=output,
        drops=drops(module),
        caches=caches,
        tied=_tied(slots_of(module), cut, names, plan),
        model=class_name(module),
        routed=has_routed_parts(module),
    )
    return Draft(
        staging=staging, module=module, setting=setting, inputs=inputs, numbers=numbers, expected=expected
    )


def _logits(output: Any) -> tuple[str, torch.Tensor]:
    """Return what the loss takes, and its name in the output."""
    if isinstance(output, torch.Tensor):
        return "", output
    logits = getattr(output, "logits", None)
    if not isinstance(logits, torch.Tensor):
        raise NotStagedError(f"it returns {type(output).__name__}, neither a tensor nor with logits")
    return "logits", logits


def _only_input(module: nn.Module, batch: Any) -> torch.Tensor:
    """Return what the model takes, without what it should predict."""
    given = (
        {name: value for name, value in batch.items() if name not in _TARGETS}
        if isinstance(batch, dict)
        else dict(enumerate(batch if isinstance(batch, tuple | list) else (batch,)))
    )
    (value, *others) = given.values()
    if others or not isinstance(value, torch.Tensor):
        raise NotStagedError(f"{type(module).__name__} takes more, or something else, than one tensor")
    return value


def _passed(cut: Cut, inputs: torch.Tensor) -> TensorShape:
    """Return the tensor that passes every cut: one, the output of the last part before it."""
    found: list[TensorShape] = []
    for span in cut.spans[1:]:
        crossing, before = cut.route.crossing(span.begin), cut.route.events[span.begin - 1]
        if len(crossing) != 1:
            raise NotStagedError(f"{len(crossing)} tensors pass to stage {span.stage}, not one")
        if crossing[0].event != span.begin - 1:
            earlier = cut.route.events[crossing[0].event].part
            raise NotStagedError(f"stage {span.stage} reads {earlier}, not {before.part} before it")
        if len(before.leaves) != 1 or not before.spec.is_leaf():
            raise NotStagedError(f"{before.part} returns more than a tensor")
        # what writes to it is told when the emitted code is tried
        found.append(replace(cut.route.shape_of(crossing[0]), changed=False))
    first = found[0]
    if any(shape != first for shape in found) or first.shape[0] != len(inputs):
        shapes = ", ".join(str(tuple(shape.shape)) for shape in dict.fromkeys(found))
        raise NotStagedError(f"{shapes} pass from stage to stage, not samples of one shape")
    return first


def _stage(cut: Cut, span: Span, blocks: Blocks) -> StageParts:
    parts = list(dict.fromkeys(event.part for event in cut.route.events[span.begin : span.end]))
    others = {event.part for event in cut.route.events if cut.route.events.index(event) not in span}
    twice = next((part for part in parts if part in others), "")
    if twice:
        raise NotStagedError(f"{twice} runs in several stages")
    places = [index for index, part in enumerate(parts) if part in blocks.names]
    if not places:
        return StageParts(before=tuple(parts), first=0, end=0)
    own = parts[places[0] : places[-1] + 1]
    prefix = f"{blocks.containers[0]}." if blocks.containers[0] else ""
    numbers = [part.removeprefix(prefix) for part in own]
    first = int(numbers[0]) if numbers[0].isdigit() else 0
    if numbers != [str(number) for number in range(first, first + len(numbers))]:
        raise NotStagedError(f"the blocks of stage {span.stage} do not run one after the other")
    return StageParts(
        before=tuple(parts[: places[0]]),
        first=first,
        end=first + len(own),
        behind=tuple(parts[places[-1] + 1 :]),
    )


def _names(stage: StageParts, container: str) -> tuple[str, ...]:
    prefix = f"{container}." if container else ""
    return (
        *stage.before,
        *(f"{prefix}{number}" for number in range(stage.first, stage.end)),
        *stage.behind,
    )


def _inside(name: str, parts: tuple[str, ...]) -> bool:
    return any(name.startswith(f"{part}.") for part in parts)


def _check_parameters(slots: list[Slot], names: list[tuple[str, ...]]) -> None:
    every = tuple(name for stage in names for name in stage)
    for slot in slots:
        beside = [name for name in slot.names if slot.is_parameter and not _inside(name, every)]
        if beside:
            raise NotStagedError(f"{beside[0]} stands beside the parts that stages run")


def _tied(
    slots: list[Slot], cut: Cut, names: list[tuple[str, ...]], plan: Plan
) -> tuple[tuple[int, str], ...]:
    """Return the weight that several ranks hold, by its name in each stage."""
    found = []
    for slot in slots:
        stages = cut.owners.get(slot.name, ())
        ranks = {rank_of_stage(plan, stage) for stage in stages}
        if slot.is_parameter and len(ranks) > 1:
            if len(ranks) < len(stages):
                raise NotStagedError(f"{slot.name} is in several stages of one rank, and of others")
            found.append(tuple((stage, _own_name(slot, stage, names[stage])) for stage in stages))
    if len(found) > 1:
        raise NotStagedError(f"{len(found)} weights are in several stages, not one")
    return found[0] if found else ()


def _own_name(slot: Slot, stage: int, parts: tuple[str, ...]) -> str:
    own = [name for name in slot.names if _inside(name, parts)]
    if not own:
        raise NotStagedError(f"stage {stage} reads {slot.name}, outside of its parts")
    return own[0]


def tried(draft: Draft, names: Mapping[str, Any]) -> Staging:
    """Run emitted code on fake tensors; return the staging with what that showed.

    Args:
        draft: what was emitted.
        names: the module that the emitted text is.

    Raises:
        NotStagedError: the stages do not compute what the model computes.
    """
    trial, is_view = _Trial(draft), False
    for index in range(len(draft.staging.stages)):
        is_view |= trial.is_view
        trial.run(names["Stage"](copy.deepcopy(draft.module), index))
    if trial.result != draft.expected:
        raise NotStagedError("tried on fake tensors, its stages do not compute what it computes as a whole")
    return replace(draft.staging, is_view=is_view)


class _Trial:
    """Stages on fake tensors, one after the other."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._known = {alias: slot.name for slot in slots_of(draft.module) for alias in slot.names}
        self._constants = {name: index for index, name in enumerate(constant_names(draft.module))}
        #: by the stage before, with its number
        self.sent, self._number = draft.inputs, -1
        #: what was computed so far
        self.result: tuple[Hashable, ...] = ()

    @property
    def is_view(self) -> bool:
        """Torch detaches in place what is sent, and Gloo takes no gaps."""
        return self.sent._is_view() or not self.sent.is_contiguous()  # noqa: SLF001  (torch's only way)

    def run(self, stage: Any) -> None:
        """Run one stage on what the one before it sent."""
        draft, constants, flow = self._draft, constant_names(stage), Flow(self._draft.numbers, _no_weight)
        with (
            fake_module(stage, self._mode, draft.setting.dtype) as (parameters, others),
            gpu_kernels(),
            self._mode,
        ):
            for name, parameter in parameters.items():
                flow.name(parameter, ("parameter", self._known[name.removeprefix("model.")]))
            for name, tensor in zip(constants, others, strict=True):
                flow.name(tensor, ("constant", self._constants[name.removeprefix("model.")]))
            short = draft.setting.dtype if draft.inputs.is_floating_point() else None  # as FSDP2 casts it
            inputs = torch.empty_like(draft.inputs, device="cpu", dtype=short)
            flow.name(inputs, ("input", 0))
            received = inputs if self._number < 0 else self.sent.detach().requires_grad_()
            if self._number >= 0:
                flow.held(received).number = self._number
            try:
                with draft.setting.active(), flow:
                    output = stage(received, inputs=inputs)
            except Exception as error:
                raise NotStagedError(
                    f"without the parts of other stages it raised {described(error)}"
                ) from error
            # what is sent may be copied: another computation by its number
            self.sent = output if stage.is_last else stage.sent
            self._number, self.result = flow.held(self.sent).number, flow.numbers_of(self.sent)


def _no_weight(_tensor: torch.Tensor) -> bool:
    return False
