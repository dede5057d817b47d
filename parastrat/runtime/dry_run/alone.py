"""A rank without the others: what all would agree on is its own, and what values would prove is taken."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from parastrat.runtime.communication import agreement, messages
from parastrat.runtime.expert_parallel import exchange
from parastrat.runtime.pipeline import keeping, pipelined
from parastrat.runtime.tensor_parallel import bench, computed, dropout, proof

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: how a schedule of torch 2.15 and of those before begins with its neighbours
_GREETINGS = ("_initialize_pipeline_distributed_state", "_warmup_p2p")


def pretend(rank: int, ranks: int) -> None:
    """Join a process group of which there is no other rank; its collectives leave what they are given."""
    if ranks == 1:
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415  (registers "fake")

    dist.init_process_group("fake", rank=rank, world_size=ranks, store=FakeStore())


@contextmanager
def others_agree() -> Iterator[None]:
    """Let a rank that pretends find the others of its mind, and values computed with them right."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(dist, "all_gather_object", _all_the_same))
        stack.enter_context(patch.object(agreement, "from_first", _own))
        # what raises in the proof is not taken: shapes are true, values are not
        shapes = _Shapes(computed.results)
        stack.enter_context(patch.object(proof, "results", shapes.results))
        stack.enter_context(patch.object(bench, "results", shapes.results))
        stack.enter_context(patch.object(proof, "compared", shapes.compared))
        stack.enter_context(patch.object(computed.Results, "is_finite", True))
        # numbers that a pipeline reads of tensors: micro-batches are alike, and so are ranks
        stack.enter_context(patch.object(pipelined, "index_of", lambda _: 0))
        stack.enter_context(patch.object(pipelined, "check_same_batches", lambda *_: None))
        stack.enter_context(patch.object(keeping, "is_lost", lambda _: True))  # what failed here is raised
        stack.enter_context(patch.object(pipelined, "own_draws", nullcontext))
        stack.enter_context(patch.object(dropout, "drawn", lambda: 0))
        stack.enter_context(patch.object(exchange, "counts_of", _evenly))
        stack.enter_context(patch.object(messages, "true_on_any", _true_here))
        stack.enter_context(patch.object(messages, "one_each", lambda own, *_: [own]))
        # once in a training, neighbours tell each other whether they know their shapes; torch 2.13 began it
        if hasattr(schedules, "InferenceMode"):
            for kind in (schedules.PipelineScheduleSingle, schedules.PipelineScheduleMulti):
                name = next(name for name in _GREETINGS if hasattr(kind, name))
                stack.enter_context(patch.object(kind, name, _shapes_known))
        yield


class _Queries(TorchFunctionMode):
    """Notes how many positions the queries of each attention have."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: list[int] = []

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is functional.scaled_dot_product_attention:
            query = args[0] if args else (kwargs or {})["query"]
            self.positions.append(query.shape[-2])
        return func(*args, **(kwargs or {}))


class _Shapes:
    """The proof of a layout by shapes: code that counts whole heads folds positions into them instead.

    Args:
        results: what a small copy computes, as the proof asks for it.
    """

    def __init__(self, results: Callable[..., Any]) -> None:
        self._results = results
        #: with the results, which must not be lost: another could have their place
        self._seen: dict[int, tuple[Any, list[int]]] = {}

    def results(self, model: Any, task: Any, *known: Any, **averaged: Any) -> Any:
        with _Queries() as queries:
            found = self._results(model, task, *known, **averaged)
        if task.averages is None:  # where positions are divided themselves, they tell nothing
            self._seen[id(found)] = found, queries.positions
        return found

    def compared(self, expected: Any, got: Any, **_by: Any) -> dict[str, float]:
        """Return nothing where attention goes over the same positions, as far as both were seen."""
        seen = [self._seen[id(found)][1] for found in (expected, got) if id(found) in self._seen]
        return {} if all(each == seen[0] for each in seen) else {"attention": 1.0}


def _evenly(owner: torch.Tensor, holders: exchange.Holders) -> tuple[list[int], list[int]]:
    """Return as many choices for each rank, and from each: which they are tells no value.

    Ranks that are given the same tokens send a share of them each.
    """
    mesh = holders.mesh
    ranks, alike = mesh.size(), 1 if holders.alike is None else holders.alike.size()
    sent = torch.empty(ranks, dtype=torch.int64, device=owner.device)
    dist.all_to_all_single(torch.empty_like(sent), sent, group=mesh.get_group())
    each = owner.numel() // alike // ranks
    return [each] * ranks, [each] * ranks


def _all_the_same(values: list[Any], own: object, *_args: Any, **_kwargs: Any) -> None:
    values[:] = [own] * len(values)


def _own(action: Callable[[], Any]) -> Any:
    return action()


def _true_here(own: list[bool], device: torch.device, group: dist.ProcessGroup | None) -> list[bool]:
    dist.all_reduce(torch.tensor(own, dtype=torch.uint8, device=device), dist.ReduceOp.MAX, group)
    return own


def _shapes_known(_schedule: object, stages: list[Any], *_args: object) -> None:
    for stage in stages:
        stage._inference_mode = vars(schedules)["InferenceMode"].STATIC  # noqa: SLF001  (torch's own does it)
