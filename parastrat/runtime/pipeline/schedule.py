"""The schedules of ``torch.distributed.pipelining``, over stages whose tensors' shapes are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from parastrat.errors import WrapError
from parastrat.plan import Plan
from parastrat.runtime.pipeline.route import TensorShape
from parastrat.schedules import schedule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The tensors that one stage gets and gives; the first gets none, the last gives the loss."""

    entering: tuple[TensorShape, ...]
    leaving: tuple[TensorShape, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a tensor of one micro-batch is received into."""

    buffer: torch.Tensor
    #: another stage of this rank hands it on
    is_own: bool


class Run:
    """One schedule for micro-batches of known shapes.

    Args:
        plan: with pipeline stages.
        modules: by stage, those of this rank.
        ends: by stage; None only checks that the schedule takes this many stages and micro-batches.
        group: the pipeline's ranks.
        device: this rank's.

    Raises:
        WrapError: if torch has no such schedule, or it does not take this many.
    """

    def __init__(
        self,
        plan: Plan,
        modules: dict[int, nn.Module],
        ends: dict[int, Ends] | None,
        group: dist.ProcessGroup,
        device: torch.device,
    ) -> None:
        self._count = plan.gradient_accumulation_steps
        self._first, self._last = 0 in modules, plan.mesh.pp * plan.virtual_stages - 1 in modules
        count = plan.mesh.pp * plan.virtual_stages
        stages = [
            _Stage(
                module, index, count, device, group=group, **({} if ends is None else _metas(ends[index]))
            )
            for index, module in modules.items()
        ]
        self._stages = stages
        chosen = schedule_of(plan)
        try:
            kind = get_schedule_class(chosen.value)
            several = issubclass(kind, PipelineScheduleMulti)
            self._schedule: Any = kind(
                stages if several else stages[0], self._count, loss_fn=_own_loss, scale_grads=False
            )
        except ValueError as error:
            raise WrapError(
                f"torch's {chosen.value} does not run {count} stages on {plan.mesh.pp} ranks with "
                f"{self._count} micro-batches: {error}",
                hint=f"plan gradient_accumulation_steps as a multiple of {plan.mesh.pp}, at least {count}, "
                "or pp_schedule = GPipe",
            ) from error

    def step(self) -> None:
        """Run all micro-batches forward and backward; modules are told their index."""
        indices = torch.arange(self._count)
        first = (indices,) if self._first else ()
        self._schedule.step(
            *first, target=indices if self._last else None, return_outputs=False, micro_batch=indices
        )

    def receiving(self) -> list[Received]:
        """Return what one micro-batch is received into: activations, and gradients on the way back."""
        own = {stage.stage_index for stage in self._stages}
        kept = [info for stage in self._stages for info in (stage.args_recv_info, stage.grad_recv_info)]
        slots = [slot for each in kept for slot in each.get(0, ())]
        return [
            Received(buffer=buffer, is_own=slot.source in own)
            for slot in slots
            # those of the module's own inputs have none
            if (buffer := getattr(slot, "buffer", None)) is not None
        ]


class _Stage(PipelineStage):
    """A stage whose ranks greet others alone."""

    def _get_init_p2p_neighbors_ops(self) -> list[dist.P2POp]:
        """Leave out this rank: under torch 2.11 its neighbouring stages greet each other; Gloo fails."""
        greetings = super()._get_init_p2p_neighbors_ops()
        return [greeting for greeting in greetings if greeting.group_peer != self.group_rank]


def _own_loss(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    """The last stage returns its loss."""
    return output


def _metas(ends: Ends) -> dict[str, Any]:
    make: Callable[[TensorShape], torch.Tensor] = _meta
    return {
        "input_args": tuple(map(make, ends.entering)),
        "output_args": tuple(map(make, ends.leaving)),
    }


def _meta(shape: TensorShape) -> torch.Tensor:
    return torch.empty(shape.shape, dtype=shape.dtype, device="meta", requires_grad=shape.requires_grad)
