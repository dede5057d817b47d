"""A module divided over the tensor-parallel ranks, as the plan says: chosen, proven, applied, reported."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.runtime.agreement import shared_seed
from parastrat.runtime.data_parallel import to_device_from_first_rank
from parastrat.runtime.tensor_parallel.choice import chosen_layout
from parastrat.runtime.tensor_parallel.copies import Source
from parastrat.runtime.tensor_parallel.dropout import Regions, drops
from parastrat.runtime.tensor_parallel.layout import Inside, Layout, Role, kind_of
from parastrat.runtime.tensor_parallel.wrap import apply_layout

if TYPE_CHECKING:
    from parastrat.runtime.replay import Record
    from parastrat.runtime.wrapping import Wrapping


def tensor_parallel(
    module: nn.Module, wrapping: Wrapping, *, sample_inputs: Any = None, record: Record | None = None
) -> None:
    """Divide the module in place over the plan's tp ranks; all its parameters become DTensors.

    Raises:
        WrapError: if nothing of it can be divided, or a small copy cannot be made to prove it.
    """
    mesh = wrapping.mesh.tp
    if mesh is None:
        return
    source = Source(
        module=module,
        sample_inputs=sample_inputs,
        record=record,
        device=wrapping.device,
        sequence=wrapping.plan.sequence_parallel,
    )
    layout = chosen_layout(source, mesh)
    wrapping.layout = layout
    for part in module.modules():
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        to_device_from_first_rank(own, wrapping)
    if drops(module):
        _divide_dropout(module, layout, wrapping, mesh.get_local_rank())
    apply_layout(module, layout, mesh)
    wrapping.calls.extend(_said(layout))
    if wrapping.plan.loss_parallel:
        wrapping.calls.append("# loss parallelism is left out: the head's output is gathered")


def _divide_dropout(module: nn.Module, layout: Layout, wrapping: Wrapping, tp_rank: int) -> None:
    """Let dropout be alike on all tp ranks but inside of what they divide."""
    regions = Regions(wrapping.device, seed=shared_seed(), tp_rank=tp_rank, dp_rank=wrapping.mesh.dp_rank)
    for name, part in layout.parts.items():
        if part.role is Role.COLUMN:
            regions.begin(module.get_submodule(name))
        elif part.role is Role.ROW:
            regions.end(module.get_submodule(name))
    for block in wrapping.blocks.modules:
        regions.afresh(block)
    regions.around(module)
    wrapping.calls.append("# every training forward draws alike on all tp ranks, but in divided regions")


def _said(layout: Layout) -> list[str]:
    """Return the layout in lines: the role of each kind of module, and what stays whole."""
    roles: dict[str, list[str]] = defaultdict(list)
    for name, part in layout.parts.items():
        kind = kind_of(name)
        if kind not in roles[part.role.value]:
            roles[part.role.value].append(kind)
    lines = [f"# over mesh['tp'], {role}: {', '.join(kinds)}" for role, kinds in roles.items()]
    for inside in (Inside.SCALED, Inside.DTENSORS):
        kinds = dict.fromkeys(group.kind for group in layout.groups if group.inside is inside)
        if kinds:
            lines.append(f"# {inside.value} inside of {', '.join(kinds)}")
    if layout.sequence:
        lines.append("# between them the blocks' activations are divided along the sequence")
    return lines + [f"# whole on every tp rank: {left}" for left in layout.left]
