"""The first steps of a script, timed where ``parastrat tune`` asks for it; then the script ends."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from parastrat.records import plain
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.wrapping import wrapping_of
from parastrat.trials import TRIAL_VARIABLE, Loop, Timed

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.wrapping import Wrapping


@dataclass(slots=True)
class _Trial:
    """What was seen so far."""

    path: Path
    warm_up: int
    steps: int
    wrapping: Wrapping
    #: whose steps count: the first optimizer that takes one
    optimizer: Any = None
    #: when each step ended
    ends: list[float] = field(default_factory=list)
    #: that this rank's forwards were given in a step of its own loop, and of all that, step by step
    own: int = 0
    samples: list[int] = field(default_factory=list)
    by_itself: bool = False

    def see_forward(self, _module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Count the samples of a forward that a plain loop differentiates."""
        if self.wrapping.stepping or not torch.is_grad_enabled():
            return
        self.by_itself = True
        first = next((each for each in tensors_in((arguments, named)) if each.dim()), None)
        self.own += 0 if first is None else first.shape[0]

    def see_step(self, optimizer: Any, *_: Any) -> None:
        """Note a step's end, and end the script with the last that was asked for.

        Raises:
            SystemExit: it was; on all ranks, which take the same steps.
        """
        if self.optimizer is None:
            self.optimizer = optimizer
        if optimizer is not self.optimizer:
            return
        if self.wrapping.device.type != "cpu":
            torch.accelerator.synchronize(self.wrapping.device)
        plan = self.wrapping.plan
        self.ends.append(time.perf_counter())
        self.samples.append(self.own * plan.mesh.dp if self.by_itself else plan.global_batch_size)
        self.own = 0
        if len(self.ends) > self.warm_up + self.steps:
            if not dist.is_initialized() or dist.get_rank() == 0:
                self.write()
            raise SystemExit(0)

    def write(self) -> None:
        """Write what was found, whole or not at all."""
        ends, samples = self.ends[self.warm_up :], self.samples[self.warm_up + 1 :]
        pairs = zip(ends[1:], ends[:-1], strict=True)
        found = Timed(
            seconds=tuple(late - early for late, early in pairs),
            samples=(min(samples), max(samples)),
            loop=Loop.PLAIN if self.by_itself else Loop.FORWARD_BACKWARD,
            peak_bytes=_peak(self.wrapping.device),
        )
        unfinished = self.path.with_suffix(".new")
        unfinished.write_text(json.dumps(plain(found)), encoding="utf-8")
        unfinished.rename(self.path)


#: the trial that this process is of; its model is the first that was wrapped
_under_way: list[_Trial] = []


def time_steps(model: nn.Module) -> None:
    """Time the steps of a wrapped model if that is what its script was started for."""
    asked = os.environ.get(TRIAL_VARIABLE)
    if not asked or _under_way:
        return
    wanted, wrapping = json.loads(asked), wrapping_of(model)
    trial = _Trial(
        path=Path(wanted["path"]), warm_up=wanted["warm_up"], steps=wanted["steps"], wrapping=wrapping
    )
    _under_way.append(trial)
    # stages run by forward_backward alone
    if wrapping.pipeline is None:
        model.register_forward_pre_hook(trial.see_forward, with_kwargs=True)
    register_optimizer_step_post_hook(trial.see_step)


def _peak(device: torch.device) -> int | None:
    """Return the most bytes that a device's allocator had in use; None where nobody counts."""
    return None if device.type == "cpu" else int(torch.accelerator.max_memory_allocated(device))
