"""Sequence parallelism: between divided regions each rank keeps a share of the positions.

The blocks' residual stream is divided along the sequence (arXiv 2205.05198, section 4.2.2): what is whole
in a block, such as its norms, works on a share of the positions; a region gathers them before its columns
and scatters the sums behind its rows.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from parastrat.errors import WrapError
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.communication.flow import Entrance, gather, gather_parts, positions_dim, take
from parastrat.runtime.tensor_parallel.between import Divided, Passage
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.layout import Ends, Group, Layout, Left, Part, Role
from parastrat.runtime.tensor_parallel.styles import change_input, change_output, feature_dims
from parastrat.runtime.tensors.batches import called

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.device_mesh import DeviceMesh

#: the dimension of positions; samples come first, features last
SEQUENCE = 1
#: what ranks have shares of between the groups
POSITIONS = Divided(
    where="between what tp divides in the blocks",
    what="positions",
    dim=SEQUENCE,
    without="plan with sequence_parallel = false",
)


class NoStreamError(Exception):
    """The model's structure has no stream of blocks to divide; the message is the reason."""


def streamed(module: nn.Module, layout: Layout) -> Layout:
    """Return the layout with a role for everything inside of the blocks.

    Raises:
        NoStreamError: if the blocks are not one chain, or some have nothing to divide.
    """
    blocks = repeated_blocks(module)
    if len(blocks.containers) != 1:
        raise NoStreamError(f"the model has {len(blocks.containers)} lists of blocks, not one")
    inside = [name for name in blocks.names if any(inner.startswith(f"{name}.") for inner in layout.parts)]
    if len(inside) < blocks.count:
        raise NoStreamError("some blocks have nothing that is divided")
    parts = {}
    for block in blocks.names:
        for name, part in module.get_submodule(block).named_modules(prefix=block):
            if name not in layout.parts and any(True for _ in part.parameters(recurse=False)):
                parts[name] = Part(role=Role.SUMMED)
    whole = Group(kind="what is whole in the blocks", parts=parts)
    return Layout(groups=(*layout.groups, whole), left=layout.left, sequence=True)


def check_shares_differ(module: nn.Module, inputs: Any, degree: int, block: str = "") -> None:
    """Check that ranks would have other positions of a batch than each other, so that lost ones show.

    Args:
        module: a small copy of the model, with blocks; its forward is run on another one.
        inputs: the batch.
        degree: number of ranks.
        block: the first that they pass through; "": the first of all.

    Raises:
        NoStreamError: if what comes to that block is the same on two of them.
    """
    trial = copy.deepcopy(module)
    seen: list[torch.Tensor] = []
    first = trial.get_submodule(block or repeated_blocks(trial).names[0])
    first.register_forward_pre_hook(
        lambda _, args, kwargs: seen.extend(activations((args, kwargs))[:1]), with_kwargs=True
    )
    with torch.no_grad():
        called(trial, inputs)
    shares = seen[0].chunk(degree, SEQUENCE) if seen else ()
    if any(torch.equal(share, other) for share, other in pairwise(shares)):
        raise NoStreamError("positions of the sample are alike, and lost ones would not show in a proof")


def activations(tree: Any) -> list[torch.Tensor]:
    """Return the tensors that have samples, positions and features."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.ndim == 3]


def extended(layout: Layout, ends: Ends) -> Layout:
    """Return a streamed layout whose stream reaches beyond the blocks."""
    between = {name: Part(role=Role.SUMMED) for name in ends.between}
    groups = (*layout.groups, Group(kind="what is whole behind the blocks", parts=between))
    return replace(layout, groups=groups if between else layout.groups, ends=ends)


def unstreamed(layout: Layout, reason: str) -> Layout:
    """Return a layout of stages with whole activations between its groups again."""
    left = (*layout.left, Left(kind="sequence parallelism", reason=reason))
    return Layout(groups=layout.groups[:-1], left=left, steps=layout.steps)


def in_stream(extent: Extent, group: Group, ends: Ends) -> bool:
    """Return whether a group's modules are in blocks, or as far beyond them as the stream reaches."""
    starts = tuple(f"{name}." for name in extent.names)
    reached = {ends.embedding, ends.head, *ends.between}
    return all(name.startswith(starts) or name in reached for name in group.parts)


def divide_stream(
    module: nn.Module, layout: Layout, mesh: DeviceMesh, extent: Extent, passage: Passage | None = None
) -> None:
    """Divide positions at the first block of each run, gather them behind its last and around regions.

    Args:
        module: whole, or a pipeline's stages.
        layout: with the sequence divided.
        mesh: the tensor-parallel ranks.
        extent: the blocks that follow each other here.
        passage: what is looked at where positions are divided.
    """
    ends = layout.ends
    length: list[int] = []
    passed = _unseen if passage is None else passage.end
    if passage is not None:
        _look_at(module, layout, extent, passage)

    def own(x: torch.Tensor) -> torch.Tensor:
        return take(x, mesh, SEQUENCE)

    def noted(x: torch.Tensor) -> torch.Tensor:
        _check_positions(x, mesh, 2 if ends.embedding else 3)
        length[:] = [x.shape[SEQUENCE]]
        return x if ends.embedding else own(x)

    for name in [ends.embedding] if ends.embedding else [run[0] for run in extent.runs]:
        change_input(module.get_submodule(name), noted)
    if ends.head:
        change_input(module.get_submodule(ends.head), lambda x: _gathered_for_head(passed(x), mesh, length))
    for name in [] if ends.head else [run[-1] for run in extent.runs]:
        change_output(module.get_submodule(name), lambda x: gather(passed(x), mesh, SEQUENCE))
    for group, columns in _regions(layout, extent):
        _gather_before(module, group, columns, _Around(mesh=mesh, extent=extent, passed=passed))


def _unseen(x: torch.Tensor) -> torch.Tensor:
    return x


def _look_at(module: nn.Module, layout: Layout, extent: Extent, passage: Passage) -> None:
    """Look at the stream from block to block and between regions; called before others change inputs."""

    def begun_anew(x: torch.Tensor, begin: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return begin(passage.end(x))

    for name in extent.names:
        change_input(module.get_submodule(name), partial(begun_anew, begin=passage.begin()))
    rows = (row for group in layout.groups if in_stream(extent, group, layout.ends) for row in group.rows)
    for name in (*rows, *filter(None, [layout.ends.embedding])):
        change_output(module.get_submodule(name), passage.begin())


def _check_positions(x: torch.Tensor, mesh: DeviceMesh, dims: int) -> None:
    if x.ndim != dims:
        what = "embedding gets ids of two" if dims == 2 else "blocks get activations of three"
        raise WrapError(
            f"sequence parallelism was proven where the {what} dimensions; these have {x.ndim}",
            hint="plan with sequence_parallel = false",
        )
    if x.shape[SEQUENCE] % mesh.size():
        raise WrapError(
            f"{x.shape[SEQUENCE]} positions do not divide by tp {mesh.size()}",
            hint=f"pad sequences to a multiple of {mesh.size()}, or plan with sequence_parallel = false",
        )


def _gathered_for_head(x: torch.Tensor, mesh: DeviceMesh, length: list[int]) -> torch.Tensor:
    """Gather positions; a head that is given some of them only would take them from each rank's share."""
    if x.ndim != 3 or [x.shape[SEQUENCE] * mesh.size()] != length:
        raise WrapError(
            f"the head was to get all {length[0] // mesh.size() if length else 0} positions of this rank's "
            f"share, and got {tuple(x.shape)}",
            hint="call the model for all positions, or plan with sequence_parallel = false",
        )
    return gather_parts(x, mesh, SEQUENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Around:
    mesh: DeviceMesh
    extent: Extent
    #: looks at what is gathered
    passed: Callable[[torch.Tensor], torch.Tensor]


def gathered_homes(layout: Layout, extent: Extent) -> list[str]:
    """Return the modules in the blocks whose code is given all positions."""
    homes = (own_home(group, extent.names) for group, _ in _regions(layout, extent))
    return [home for home in homes if home]


def _regions(layout: Layout, extent: Extent) -> Iterator[tuple[Group, list[str]]]:
    """Yield the groups that positions are gathered for, and the layers that read them."""
    for group in layout.groups:
        if group.readers and in_stream(extent, group, layout.ends):
            yield group, [*group.readers]


def _gather_before(module: nn.Module, group: Group, columns: list[str], around: _Around) -> None:
    """Gather at the module that holds the whole group, so that its code sees whole sequences."""
    entrance = Entrance(
        lambda x: gather_parts(around.passed(x), around.mesh, positions_dim(x)),
        shared=bool(group.rows),
        in_evaluation=True,
    )
    for name in group.rows:
        change_input(module.get_submodule(name), entrance.forget)
    home = own_home(group, around.extent.names)
    if home:
        dims = {_input_features(module.get_submodule(name)) for name in columns}
        _gather_activations(module.get_submodule(home), dims, entrance)
        return
    for name in columns:
        change_input(module.get_submodule(name), entrance)


def own_home(group: Group, blocks: tuple[str, ...]) -> str:
    """Return the innermost module that holds a group, if it is no whole block; else nothing."""
    home = home_of(group.places)
    return "" if home in blocks else home


def home_of(names: list[str]) -> str:
    """Return the innermost module that holds them all."""
    pieces = [name.split(".")[:-1] for name in names]
    shared = 0
    while all(len(each) > shared and each[shared] == pieces[0][shared] for each in pieces):
        shared += 1
    return ".".join(pieces[0][:shared])


def _input_features(layer: Any) -> int:
    dims = feature_dims(layer)
    return int(layer.weight.shape[dims[1]]) if dims else 0


def _gather_activations(home: nn.Module, features: set[int], entrance: Entrance) -> None:
    """Gather the inputs that its columns can read; angles and masks are whole already."""

    def gathered(value: Any) -> Any:
        activation = (
            isinstance(value, torch.Tensor) and value.ndim in (2, 3) and value.shape[-1] in features
        )
        return entrance(value) if activation else value

    def hook(_home: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return tuple(map(gathered, args)), {name: gathered(value) for name, value in kwargs.items()}

    home.register_forward_pre_hook(hook, with_kwargs=True)
