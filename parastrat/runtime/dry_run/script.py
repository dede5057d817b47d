"""A user's own script run as one rank of a job that is not there, up to the end of an optimizer step."""

from __future__ import annotations

import os
import runpy
import sys
import time
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.distributed import device_mesh, distributed_c10d
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils
from torch.utils.data import DataLoader

from parastrat.dry_run import DryRun
from parastrat.errors import ParastratError, WrapError
from parastrat.runtime import apply
from parastrat.runtime.building import described
from parastrat.runtime.dry_run.accelerator import pretended_accelerator
from parastrat.runtime.dry_run.alone import others_agree
from parastrat.runtime.dry_run.apart import apart
from parastrat.runtime.dry_run.losses import losses_of_scripts
from parastrat.runtime.dry_run.proofs import proofs_apart
from parastrat.runtime.dry_run.replicas import replicas_on_fakes
from parastrat.runtime.dry_run.steps import Ended, Steps
from parastrat.runtime.dry_run.values import Values, parameters_on_device
from parastrat.runtime.dry_run.watch import Watch, storages_followed
from parastrat.runtime.tracing.fake_mode import FakeMode
from parastrat.runtime.tracing.fakes import gpu_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parastrat.runtime.dry_run.command import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTask:
    """Which rank of which job, and how far."""

    command: Command
    rank: int = 0
    #: optimizer steps; the figures are the last one's
    steps: int = 2


def run_script(command: Command, rank: int = 0, steps: int = 2) -> DryRun:
    """Run a script as one rank of its job up to the end of an optimizer step, in a process of its own.

    Args:
        command: the script and its job.
        rank: which one of the job; the others are not there.
        steps: optimizer steps; what is found is the last one's. The first has no optimizer states in its
            backward.

    Raises:
        WrapError: the script raises, needs values that are not there, or ends without a step.
        LaunchError: the process ended without an answer.
    """
    return apart(dry_run_script, ScriptTask(command=command, rank=rank, steps=steps))


def dry_run_script(task: ScriptTask) -> DryRun:
    """Run a script in this process until the asked optimizer step ends; return what that one finds.

    Raises:
        WrapError: the script raises, needs values that are not there, or ends without a step.
    """
    begun = time.perf_counter()
    command = task.command
    watch, values = Watch(FakeTensor), Values()
    steps = Steps(watch, task.steps)
    os.environ.update(command.environment(task.rank))
    sys.argv = [command.script, *command.arguments]
    place = Path.cwd() if command.as_module else Path(command.script).resolve().parent
    sys.path.insert(0, str(place))
    left_out: dict[str, None] = {}
    with _as_rank(task, values, watch), _left_out(left_out), steps.followed(), _told(task), suppress(Ended):
        if command.as_module:
            runpy.run_module(command.script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(command.script, run_name="__main__")
    if not steps.count:
        raise WrapError(
            f"{command.script} ended without an optimizer step",
            hint="give it arguments with which it trains",
        )
    if steps.count < task.steps:
        left_out[f"the script ended after optimizer step {steps.count}, which the figures are of"] = None
    found: Any = steps.last
    return DryRun(
        rank=task.rank,
        **found,
        traffic=steps.traffic,
        caveats=(*left_out, *_values_taken(values)),
        seconds=time.perf_counter() - begun,
    )


@contextmanager
def _as_rank(task: ScriptTask, values: Values, watch: Watch) -> Iterator[None]:
    """Let this process be a rank with an accelerator, whose tensors are fake."""
    command, rank = task.command, task.rank
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(redirect_stdout(sys.stderr))
        enter(others_agree())
        enter(proofs_apart())
        enter(losses_of_scripts())
        enter(replicas_on_fakes(values.fakes, watch))
        enter(pretended_accelerator(values, watch, command.ranks_per_node, rank % command.ranks_per_node))
        enter(_pretended_group(rank, command.world_size))
        enter(_all_at_once())
        enter(parameters_on_device(values, watch))
        enter(gpu_kernels())
        enter(storages_followed(watch))
        enter(values)
        enter(watch)
        yield


@contextmanager
def _pretended_group(rank: int, ranks: int) -> Iterator[None]:
    """Let the script join the fake group whenever it joins one, and make its groups of that kind."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  (registers "fake")

    begin, more = dist.init_process_group, dist.new_group

    def join(*_args: Any, **_keywords: Any) -> None:
        if not dist.is_initialized():
            begin("fake", rank=rank, world_size=ranks, store=FakeStore())

    def new_group(ranks: Any = None, *_: Any, **keywords: Any) -> Any:
        return more(ranks, group_desc=keywords.get("group_desc"))

    with ExitStack() as stack:
        for place in (dist, distributed_c10d, device_mesh):
            stack.enter_context(patch.object(place, "init_process_group", join))
        for place in (dist, distributed_c10d):
            stack.enter_context(patch.object(place, "new_group", new_group))
            stack.enter_context(patch.object(place, "broadcast_object_list", _nothing))
            stack.enter_context(patch.object(place, "monitored_barrier", _nothing))
        stack.enter_context(patch.object(apply, "from_first", _own))
        yield


@contextmanager
def _all_at_once() -> Iterator[None]:
    """Let optimizers take all parameters at once, as on a device and with plain tensors."""
    kinds = _foreach_utils._get_foreach_kernels_supported_devices()  # noqa: SLF001
    supported = lambda: [*kinds, "cpu"]  # noqa: E731
    with ExitStack() as stack:
        for place in (optimizers, _foreach_utils):
            stack.enter_context(patch.object(place, "_get_foreach_kernels_supported_devices", supported))
            types = place._foreach_supported_types  # noqa: SLF001
            stack.enter_context(patch.object(place, "_foreach_supported_types", [*types, FakeTensor]))
        yield


@contextmanager
def _left_out(said: dict[str, None]) -> Iterator[None]:
    """Do without what fake tensors cannot: compiling, saving, processes that read data."""

    def plain(model: Any = None, **_keywords: Any) -> Any:
        said["torch.compile is left out: what is verified is the eager wrapping"] = None
        return (lambda function: function) if model is None else model

    def compiled(_module: nn.Module, *_args: Any, **_keywords: Any) -> None:
        plain()

    def not_saved(*_args: Any, **_keywords: Any) -> None:
        said["nothing is saved"] = None

    load, begin = torch.load, DataLoader.__init__

    def without_values(*args: Any, **keywords: Any) -> Any:
        with FakeMode():
            return load(*args, **keywords)

    def alone(loader: DataLoader[Any], *args: Any, **keywords: Any) -> None:
        for name in ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "timeout"):
            keywords.pop(name, None)
        begin(loader, *args, **keywords)

    with ExitStack() as stack:
        stack.enter_context(patch.object(torch, "compile", plain))
        stack.enter_context(patch.object(nn.Module, "compile", compiled))
        stack.enter_context(patch.object(torch, "save", not_saved))
        stack.enter_context(patch.object(torch, "load", without_values))
        stack.enter_context(patch.object(DataLoader, "__init__", alone))
        yield


@contextmanager
def _told(task: ScriptTask) -> Iterator[None]:
    """Turn what stops a script into one message."""
    script = task.command.script
    try:
        yield
    except ParastratError:
        raise
    except SystemExit as error:
        if error.code not in (None, 0):
            raise WrapError(
                f"{script} leaves with {error.code!r}", hint="see above what it says"
            ) from error
    except DynamicOutputShapeException as error:
        raise WrapError(
            f"{script} makes a tensor whose size depends on values: {described(error)}",
            hint="a dry run knows shapes only: replace nonzero and tensor[mask] by torch.where",
        ) from error
    except UnsupportedOperatorException as error:
        raise WrapError(
            f"{script} uses {error.func}, which does not say what shape it returns",
            hint="register it: torch.library.register_fake",
        ) from error
    except Exception as error:  # the script may raise anything; the message quotes it
        raise WrapError(
            f"{script} raised {described(error)}",
            hint="see whether it trains on one device; a dry run has shapes, but no values on the device",
        ) from error


def _values_taken(values: Values) -> tuple[str, ...]:
    return tuple(
        f"{place} reads a value of the device, which is not there: taken as {taken}"
        for place, taken in values.taken.items()
    )


def _nothing(*_args: Any, **_keywords: Any) -> None:
    return None


def _own(action: Callable[[], Any]) -> Any:
    return action()
