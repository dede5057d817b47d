"""A settled layout applied to a module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from parastrat.runtime.communication.flow import Entrance, enter
from parastrat.runtime.tensor_parallel.access import local_inside
from parastrat.runtime.tensor_parallel.between import Divided, Passage, features_of, norms_of, passage
from parastrat.runtime.tensor_parallel.copied_heads import divide_readers
from parastrat.runtime.tensor_parallel.counting import divide_counts
from parastrat.runtime.tensor_parallel.dtensors import know_plain_tensors
from parastrat.runtime.tensor_parallel.extent import Extent
from parastrat.runtime.tensor_parallel.layout import Inside, heads
from parastrat.runtime.tensor_parallel.same_way import hold_to
from parastrat.runtime.tensor_parallel.sequence import POSITIONS, divide_stream, in_stream
from parastrat.runtime.tensor_parallel.styles import Styling, apply_part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.layout import Group, Layout, Step
    from parastrat.runtime.tensor_parallel.sums import Place


def apply_layout(
    module: nn.Module,
    layout: Layout,
    mesh: DeviceMesh,
    extent: Extent | None = None,
    noted: dict[str, set[Step]] | None = None,
) -> list[Place]:
    """Divide the module in place: all its parameters become DTensors on ``mesh``, ties kept.

    Args:
        module: whole, or without the parameters of other pipeline stages.
        layout: of the whole.
        mesh: the tensor-parallel ranks.
        extent: the blocks that follow each other here; None: all of a whole module.
        noted: where the steps on what is divided are noted, by where that is, to prove the layout;
            without it they are held to those of the layout.

    Returns:
        Whole weights that see a share of the data, whose gradients are added up.
    """
    extent = extent or Extent.of(module)
    stylings = {
        path: styling
        for group in layout.groups
        for styling in [_styling(group, layout, mesh, extent, noted)]
        for path in group.parts
    }
    parts = layout.parts
    alone = Styling(mesh=mesh, entrance=_entrance(mesh))
    made: dict[int, nn.Parameter] = {}
    summed: list[Place] = []
    for path, part in list(module.named_modules()):
        before = dict(part.named_parameters(recurse=False))
        for name, parameter in before.items():
            if id(parameter) in made:
                part._parameters[name] = made[id(parameter)]  # noqa: SLF001  (nn.Module's setattr has side effects)
        summed += apply_part(part, parts.get(path), stylings.get(path, alone))
        for name, parameter in before.items():
            made[id(parameter)] = part._parameters[name]  # noqa: SLF001
    hold_to(module, layout)
    for group in layout.groups:
        if group.inside is Inside.SCALED:
            divide_counts(module, group, mesh.size())
        divide_readers(module, group, mesh.size())
    if any(group.inside is Inside.DTENSORS for group in layout.groups):
        know_plain_tensors()
    if layout.sequence:
        between = passage(POSITIONS, layout, noted)
        divide_stream(module, layout, mesh, extent, between)
    for part in (module, *extent.modules(module)):
        local_inside(part)
    return summed


def _styling(
    group: Group, layout: Layout, mesh: DeviceMesh, extent: Extent, noted: dict[str, set[Step]] | None
) -> Styling:
    stream = layout.sequence and in_stream(extent, group, layout.ends)
    return Styling(
        mesh=mesh,
        entrance=_entrance(mesh, group),
        inside=group.inside,
        sequence=stream,
        loss=layout.loss and any(name in group.parts for name in heads(layout, extent.names)),
        passage=_passage(group, features_of(group.kind), layout, noted),
        norms=_passage(group, norms_of(group.kind), layout, noted) if group.normalises else None,
    )


def _passage(
    group: Group, of: Divided, layout: Layout, noted: dict[str, set[Step]] | None
) -> Passage | None:
    known = group.rows and group.inside is not Inside.DTENSORS
    return passage(of, layout, noted) if known else None


def _entrance(mesh: DeviceMesh, group: Group | None = None) -> Entrance:
    return Entrance(lambda x: enter(x, mesh), shared=group is not None and bool(group.rows))
