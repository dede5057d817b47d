"""A module divided over the tensor-parallel ranks, as the plan says: chosen, proven, applied, reported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from parastrat.errors import WrapError
from parastrat.plan import Compile
from parastrat.runtime.communication.agreement import alike, shared_seed
from parastrat.runtime.communication.flow import follows_exchanges
from parastrat.runtime.first_values.first_rank import to_device_from_first_rank
from parastrat.runtime.tensor_parallel.choice import chosen_layout
from parastrat.runtime.tensor_parallel.copies import Source
from parastrat.runtime.tensor_parallel.dropout import Regions, drops
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.layout import Inside, Layout, Role, kind_of
from parastrat.runtime.tensor_parallel.own_values import GatheredLeaves, Leaves
from parastrat.runtime.tensor_parallel.sums import Sums
from parastrat.runtime.tensor_parallel.wrap import apply_layout
from parastrat.runtime.training.writes import refuse_assigned_data

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.wrapping import Wrapping


def choose_layout(source: Source, wrapping: Wrapping, mesh: DeviceMesh) -> None:
    """Note how the whole module will be divided over the plan's tp ranks; all ranks call it.

    Raises:
        WrapError: if nothing of it can be divided, or a small copy cannot be made to prove it.
        MismatchError: if the tensor-parallel groups did not find the same.
    """
    source = replace(
        source,
        sequence=wrapping.plan.sequence_parallel,
        loss=wrapping.plan.loss_parallel,
        stages=wrapping.plan.mesh.pp > 1,
        positions=wrapping.plan.mesh.cp > 1,
    )
    wrapping.layout = chosen_layout(source, mesh)
    check_alike(wrapping.layout)


def check_alike(layout: Layout) -> None:
    """Check that all ranks divide layers alike.

    Raises:
        MismatchError: naming those that do not.
    """
    # reasons may have figures, which other machines round otherwise
    alike(str(replace(layout, left=())), "divide the model's layers differently")


def tensor_parallel(module: nn.Module, wrapping: Wrapping) -> None:
    """Divide the module in place as was chosen; all its parameters become DTensors.

    Args:
        module: whole, or without the parameters of other pipeline stages.
        wrapping: with the layout of the whole.

    Raises:
        WrapError: if blocks are to be compiled, and this torch computes wrong gradients then.
    """
    mesh, layout = wrapping.mesh.tp, wrapping.layout
    if mesh is None or layout is None:
        return
    if wrapping.plan.compile is not Compile.NONE and not follows_exchanges(mesh, wrapping.device):
        raise WrapError(
            f"torch {torch.__version__} loses the gradients of what tp ranks exchange in compiled blocks",
            hint="update torch to 2.13, or plan with compile = none: parastrat recommend --stack torch",
        )
    seed = agreed_seed(wrapping)
    extent = extent_of(module, wrapping)
    for part in module.modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        to_device_from_first_rank(own, wrapping)
    if drops(module):
        _divide_dropout(module, layout, regions_of(wrapping, mesh, seed), extent)
        wrapping.calls.append("# a training forward draws alike on all tp ranks, but in divided regions")
    summed = apply_layout(module, layout, mesh, extent)
    if wrapping.plan.mesh.dp == 1 and not wrapping.plan.shards_parameters:
        refuse_assigned_data(module)
    if _completes_at_the_end(wrapping):
        wrapping.sums = Sums(module, summed, mesh)
        wrapping.leaves = GatheredLeaves(module) if wrapping.plan.shards_parameters else Leaves(module)
    wrapping.calls.extend(_said(layout, mesh.size()))


def _completes_at_the_end(wrapping: Wrapping) -> bool:
    """Return whether what can be done once behind a step's backwards is done there.

    DDP reduces gradients in backward and looks for the parameters themselves, as do split backwards of
    stages, and stages add up those of tied weights before the end. What a compiler followed tells neither
    one step from another, nor one block from the next.
    """
    plan = wrapping.plan
    if wrapping.pipeline is not None or plan.compile is not Compile.NONE:
        return False
    return plan.shards_parameters or plan.mesh.dp == 1


def _copied(layout: Layout, degree: int) -> Iterator[str]:
    """Yield what is said of heads that are fewer than ranks."""
    found: dict[tuple[str, int], dict[str, None]] = defaultdict(dict)
    for name, part in layout.parts.items():
        if part.copied:
            home, _, own = kind_of(name).rpartition(".")
            found[home, part.copied][own] = None
    for (home, heads), names in found.items():
        layers = f"{home}.{{{','.join(names)}}}"
        yield f"# the {heads} heads of {layers} are each computed by {degree // heads} ranks"


def extent_of(module: nn.Module, wrapping: Wrapping) -> Extent:
    """Return the blocks of a module, whole or without those of other stages."""
    return wrapping.pipeline.extent if wrapping.pipeline else Extent.of(module)


def regions_of(wrapping: Wrapping, mesh: DeviceMesh, seed: int) -> Regions:
    """Return what lets a forward draw alike on the ranks of a mesh, and otherwise on each of all others."""
    stage = 0 if wrapping.mesh.pp is None else wrapping.mesh.pp.get_local_rank()
    place = wrapping.mesh.dp_rank + stage * wrapping.plan.mesh.dp
    return Regions(wrapping.device, seed=seed, tp_rank=mesh.get_local_rank(), dp_rank=place)


def agreed_seed(wrapping: Wrapping) -> int:
    """Return what draws in forwards begin with; the ranks agree on it once, and copies ask nobody."""
    if wrapping.seed is None:
        with own_draws(wrapping.device):
            wrapping.seed = shared_seed()
    return wrapping.seed


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Leave first weights and the user's own draws as they would be without tensor parallelism."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices=devices, device_type=devices[0].type if devices else "cuda"):
        yield


def _divide_dropout(module: nn.Module, layout: Layout, regions: Regions, extent: Extent) -> None:
    """Let dropout be alike on all tp ranks but inside of what they divide."""
    for name, part in layout.parts.items():
        if part.role is Role.COLUMN:
            regions.begin(module.get_submodule(name))
        elif part.role is Role.ROW:
            regions.end(module.get_submodule(name))
    for block in extent.modules(module):
        regions.afresh(block)
    regions.around(module)


def _said(layout: Layout, degree: int) -> list[str]:
    """Return the layout in lines: the role of each kind of module, and what stays whole."""
    roles: dict[str, list[str]] = defaultdict(list)
    for name, part in layout.parts.items():
        kind = kind_of(name)
        if kind not in roles[part.role.value]:
            roles[part.role.value].append(kind)
    lines = [f"# over mesh['tp'], {role}: {', '.join(kinds)}" for role, kinds in roles.items()]
    lines += _copied(layout, degree)
    for inside in (Inside.SCALED, Inside.DTENSORS):
        kinds = dict.fromkeys(group.kind for group in layout.groups if group.inside is inside)
        if kinds:
            lines.append(f"# {inside.value} inside of {', '.join(kinds)}")
    if layout.sequence:
        start, end = layout.ends.embedding or "the first block", layout.ends.head or "the end of the last"
        lines.append(f"# between them activations are divided along the sequence, from {start} to {end}")
    if layout.loss:
        lines.append("# forward_backward keeps logits divided up to cross entropy; model(x) gathers them")
    return lines + [f"# whole on every tp rank: {left}" for left in layout.left]
