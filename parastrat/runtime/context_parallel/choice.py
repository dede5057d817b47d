"""The division of a model's positions that a plan with cp applies: found, and proven on a small copy."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.errors import WrapError
from parastrat.runtime.blocks import parameter_count, repeated_blocks
from parastrat.runtime.communication.agreement import together
from parastrat.runtime.context_parallel.attention import Attention
from parastrat.runtime.context_parallel.counting import counting
from parastrat.runtime.context_parallel.positions import Positions
from parastrat.runtime.context_parallel.seen import seen_in
from parastrat.runtime.context_parallel.stream import (
    SEQUENCE,
    Division,
    NotDividedError,
    Row,
    Stream,
    given_of,
)
from parastrat.runtime.in_step import in_step
from parastrat.runtime.tensor_parallel.bench import Bench, bench_of
from parastrat.runtime.tensor_parallel.computed import Results
from parastrat.runtime.tensor_parallel.ends import around_blocks
from parastrat.runtime.tensor_parallel.loss import task_of_loss, unproven
from parastrat.runtime.tensor_parallel.proof import Verdict, tried
from parastrat.runtime.tensor_parallel.samples import batch_for
from parastrat.runtime.tensor_parallel.sequence import NoStreamError, check_shares_differ
from parastrat.runtime.tensor_parallel.styles import feature_dims

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.copies import Source


def chosen_division(source: Source, mesh: DeviceMesh) -> Division:
    """Return a division that was proven; all ranks of the job call it.

    Raises:
        WrapError: if the model's positions cannot be divided.
        MismatchError: if another rank failed, naming it, or tried something else.
    """
    # twice as many pieces as ranks, and as many again to see what changes with their number
    bench = together(lambda: bench_of(source, mesh, degree=2 * mesh.size()))
    return in_step(lambda: _proven(source, bench), mesh)


def _proven(source: Source, bench: Bench) -> Division:
    ranks = bench.mesh.size()
    try:
        container = largest_list(source.module)
        division = _suggested(bench, container, batch_for(source, bench.copy, 4 * ranks))
        first = next(iter(blocks_of(bench.copy, container)))
        check_shares_differ(bench.copy, bench.task.inputs, 2 * ranks, first)
    except (NotDividedError, NoStreamError) as reason:
        raise _refused(source.module, ranks, str(reason)) from None
    verdict = _holds(bench, division)
    if not verdict:
        raise _refused(source.module, ranks, f"not proven: {verdict}")
    return _with_head(bench, division)


def _with_head(bench: Bench, division: Division) -> Division:
    """Return the division with the head's work, and its loss, divided too, where that is proven."""
    head = _head_of(bench.copy, bench.task.inputs)
    if not head:
        return division
    for whole_between in (False, True):
        further = replace(division, head=head, whole_between=whole_between)
        if _holds(bench, further):
            break
    else:
        return division
    task = replace(task_of_loss(bench.copy, bench.task.inputs, head), averages=bench.mesh)
    loss = replace(further, loss=True)

    def verdict(expected: Results) -> Verdict:
        return tried(bench.copy, expected, task, bench.mesh, partial(_divided, loss, bench.mesh))

    return further if unproven(bench.copy, task, bench.mesh, verdict) else loss


def _head_of(module: nn.Module, inputs: Any) -> str:
    """Return the name of the linear layer that a model calls last, behind its blocks, or ""."""
    _, after = around_blocks(copy.deepcopy(module), inputs)
    is_head = bool(after) and feature_dims(module.get_submodule(after[-1])) is not None
    return after[-1] if is_head else ""


def _holds(bench: Bench, division: Division) -> Verdict:
    task = replace(bench.task, averages=bench.mesh)
    return tried(bench.copy, bench.expected, task, bench.mesh, partial(_divided, division, bench.mesh))


def _refused(module: nn.Module, ranks: int, reason: str) -> WrapError:
    return WrapError(
        f"the positions of this {type(module).__name__} cannot be divided by cp {ranks} ({reason})",
        hint="plan without cp: parastrat recommend --cp 1, such as fsdp2 over all ranks",
    )


def _divided(division: Division, mesh: DeviceMesh, module: nn.Module) -> None:
    divide(module, [*blocks_of(module, division.container).values()], stream_of(division, mesh))


def divide(module: nn.Module, blocks: list[nn.Module], stream: Stream) -> None:
    """Divide the positions of a small copy in place, whose blocks nothing recomputes."""
    rows = [Row(blocks=blocks)]
    stream.work_on_shares(rows)
    stream.give_shares(rows)
    stream.end(module)


def stream_of(
    division: Division, mesh: DeviceMesh, *, gathers_again: bool = True, further: int = 1
) -> Stream:
    """Return the stream of a division over a mesh.

    Args:
        division: that was chosen.
        mesh: of the ranks that have the positions of one sample.
        gathers_again: backward gathers keys and values.
        further: ranks of tp that divide the positions of each.
    """
    positions = Positions(mesh=mesh, balanced=division.balanced)
    attention = Attention(positions=positions, gathers_again=gathers_again)
    return Stream(positions=positions, attention=attention, division=division, further=further)


def blocks_of(module: nn.Module, container: str) -> dict[str, nn.Module]:
    """Return the blocks of a list by name."""
    blocks = repeated_blocks(module)
    return {
        name: block
        for name, block in zip(blocks.names, blocks.modules, strict=True)
        if name.rpartition(".")[0] == container
    }


def largest_list(module: nn.Module) -> str:
    """Return the name of the list of blocks that has most of a model's weights: its language model's, say.

    Raises:
        NotDividedError: if the model has none.
    """
    containers = repeated_blocks(module).containers
    if not containers:
        raise NotDividedError("the model has no list of blocks")
    return max(containers, key=lambda name: parameter_count(module.get_submodule(name)))


def _suggested(bench: Bench, container: str, longer: Any) -> Division:
    """Return how positions may be divided; all remains to be proven.

    Args:
        bench: the small copy.
        container: the list of blocks that they pass through.
        longer: a batch with more of them.

    Raises:
        NotDividedError: if it is seen already that they cannot.
    """
    blocks = blocks_of(bench.copy, container)
    short, long = (seen_in(bench.copy, tuple(blocks), inputs) for inputs in (bench.task.inputs, longer))
    if short.shapes == long.shapes:  # nobody knows which of its dimensions are positions
        long = seen_in(bench.copy, tuple(blocks), _with_twice(bench.task.inputs, short.length))
    if short.changed:
        raise NotDividedError(f"a forward changes {short.changed}, on each rank by its own positions")
    if not short.attentions:
        raise NotDividedError("no block calls scaled_dot_product_attention")
    given = given_of(short.shapes, long.shapes)
    if given.get(short.stream) != SEQUENCE:
        raise NotDividedError("blocks are given no activations of samples, positions and features")
    lengths = short.length, long.length
    counts = {counting(*ends, lengths) for ends in zip(short.ends, long.ends, strict=False)}
    if len(counts) > 1:
        raise NotDividedError("blocks count positions each in another way")
    return Division(container=container, given=given, counts=counts.pop(), balanced=short.causal > 0)


def _with_twice(inputs: Any, length: int) -> Any:
    """Return a batch with twice as many positions.

    Raises:
        NotDividedError: if no dimension behind that of samples has so many.
    """

    def twice(leaf: Any) -> Any:
        grows = isinstance(leaf, torch.Tensor) and leaf.shape[1:2] == (length,)
        return torch.cat([leaf, leaf], 1) if grows else leaf

    longer = tree_map(twice, inputs)
    if all(a is b for a, b in zip(tree_leaves(inputs), tree_leaves(longer), strict=True)):
        raise NotDividedError("the number of positions does not follow from the shape of a batch")
    return longer
