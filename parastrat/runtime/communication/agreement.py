"""All ranks are of one mind before anything is wrapped, or all stop and say who differs."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from parastrat.errors import MismatchError, OutOfStepError, ParastratError
from parastrat.plan import Plan
from parastrat.records import plain

T = TypeVar("T")


def digest(plan: Plan, model: nn.Module) -> str:
    """Return a hash of the plan and of the names, shapes and formats of the model's parameters."""
    tensors = [
        (name, list(parameter.shape), str(parameter.dtype), parameter.requires_grad)
        for name, parameter in model.named_parameters()
    ]
    return hashlib.sha256(json.dumps([plain(plan), tensors], sort_keys=True).encode()).hexdigest()


def together(action: Callable[[], T]) -> T:
    """Run ``action`` on every rank; if it fails on some, all raise instead of waiting for them.

    Raises:
        ParastratError: this rank's own failure.
        MismatchError: on the other ranks, naming the first that failed and why.
    """
    failure: ParastratError | None = None
    try:
        result = action()
    except ParastratError as error:
        failure = error
    stopped = isinstance(failure, OutOfStepError)  # it knows no more than that there is another
    messages = _gathered(None if failure is None or stopped else failure.message)
    failed = [rank for rank, message in enumerate(messages) if message is not None]
    if failure is not None and not (stopped and failed):
        raise failure
    if failed:
        raise MismatchError(
            f"{named(failed)} refused: {messages[failed[0]]}", hint="see the output of that rank"
        )
    return result


def agree(plan: Plan, model: nn.Module) -> None:
    """Check that all ranks hold the same plan and the same model.

    Raises:
        MismatchError: naming the ranks that differ from rank 0, and how.
    """
    views = _gathered((digest(plan, model), f"{plan.strategy}, {plan.mesh}", type(model).__name__))
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for rank, view in enumerate(views):
        groups[view].append(rank)
    if len(groups) > 1:
        said = "; ".join(f"{named(ranks)}: {view[2]} under {view[1]}" for view, ranks in groups.items())
        raise MismatchError(
            f"the ranks hold different plans or models ({said})",
            hint="start all ranks with the same script, arguments and plan file (PARASTRAT_PLAN)",
        )


def alike(value: str, what: str, hint: str = "") -> None:
    """Check that all ranks hold the same value.

    Args:
        value: of this rank.
        what: the others do, to have another.
        hint: what to do then; without one, to start all ranks alike.

    Raises:
        MismatchError: naming the ranks that differ from rank 0.
    """
    digests = _gathered(hashlib.sha256(value.encode()).hexdigest())
    others = [rank for rank, each in enumerate(digests) if each != digests[0]]
    if others:
        raise MismatchError(
            f"rank 0 and {named(others)} {what}",
            hint=hint or "start all ranks with the same script, arguments and versions of torch",
        )


def from_first(action: Callable[[], T]) -> T:
    """Return what ``action`` gives on rank 0, on every rank; the others do not run it.

    Raises:
        ParastratError: on every rank, if rank 0 failed.
    """
    if not dist.is_initialized():
        return action()
    answer: list[object] = [None]
    if dist.get_rank() == 0:
        try:
            answer = [action()]
        except ParastratError as error:
            answer = [error]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], ParastratError):
        raise answer[0]
    return answer[0]  # type: ignore[return-value]  # a broadcast object has the type that rank 0 gave it


def shared_seed() -> int:
    """Draw a seed from the global generator, so that it moves on, and return rank 0's."""
    own = int(torch.randint(2**62, (1,)).item())
    return from_first(lambda: own)


def _gathered(value: T) -> list[T]:
    if not dist.is_initialized():
        return [value]
    values: list[T] = [value] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def named(ranks: list[int]) -> str:
    """Return ranks in words."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
