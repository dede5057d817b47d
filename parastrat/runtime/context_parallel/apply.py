"""A module whose positions are divided over the context-parallel ranks, as the plan says."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torch import nn

from parastrat.plan import Recompute
from parastrat.runtime.communication.agreement import alike
from parastrat.runtime.context_parallel.beside_layers import Both, further_ranks, proven_together
from parastrat.runtime.context_parallel.choice import chosen_division, stream_of
from parastrat.runtime.pipeline.positions import route_of_shares, rows_of
from parastrat.runtime.tensor_parallel.apply import agreed_seed, check_alike, extent_of, regions_of
from parastrat.runtime.tensor_parallel.copies import Source
from parastrat.runtime.tensor_parallel.dropout import drawing_apart, drops
from parastrat.runtime.tensor_parallel.extent import Extent

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.context_parallel.stream import Stream
    from parastrat.runtime.wrapping import Wrapping


def choose_division(source: Source, wrapping: Wrapping, mesh: DeviceMesh) -> None:
    """Note how the whole module's positions will be divided over the plan's cp ranks; all ranks call it.

    With tp as well, how its layers are: less of both may hold together than did of each alone.

    Raises:
        WrapError: if they cannot be, or a small copy cannot be made to prove it.
        MismatchError: if the ranks did not find the same.
    """
    division, layout = chosen_division(replace(source, axis="cp"), mesh), wrapping.layout
    if layout is not None:
        alone = Both(layout=layout, division=division)
        both = proven_together(replace(source, axis="cp and tp"), alone, wrapping.mesh)
        division, wrapping.layout = both.division, both.layout
        check_alike(both.layout)
    wrapping.division = division
    alike(str(division), "divide the model's positions differently")


def context_parallel(module: nn.Module, wrapping: Wrapping) -> Stream | None:
    """Let the module's blocks work on this rank's positions, as was chosen; None without cp.

    They are given these by ``give_positions``, once it is known what recomputes them.
    """
    mesh, division = wrapping.mesh.cp, wrapping.division
    if mesh is None or division is None:
        return None
    seed = agreed_seed(wrapping)
    stream = stream_of(
        division,
        mesh,
        gathers_again=wrapping.plan.recompute is Recompute.NONE,
        further=further_ranks(wrapping.layout, wrapping.mesh),
    )
    if drops(module):
        if wrapping.mesh.tp is None:  # else its own are around the module
            regions_of(wrapping, mesh, seed).around(module)
        stream.draws = drawing_apart(wrapping.device, mesh.get_local_rank())
        wrapping.calls.append("# a training forward draws alike on all cp ranks, but in the blocks")
    extent = extent_of(module, wrapping)
    rows = rows_of(division, extent, {name: module.get_submodule(name) for name in extent.names})
    stream.work_on_shares(rows)
    stream.end(module)
    if wrapping.pipeline is not None:
        wrapping.pipeline.as_divided = partial(route_of_shares, stream=stream)
    share = "a piece from either end" if division.balanced else "a piece"
    wrapping.calls.append(
        f"# each rank of context['cp'] has {share} of every sequence in {type(module).__name__}'s "
        f"{sum(len(row.blocks) for row in rows)} blocks, whose attention gathers keys and values"
    )
    if division.head:
        place = "in" if division.whole_between else "behind them, up to"
        wrapping.calls.append(f"# and {place} {division.head}")
    if division.loss:
        wrapping.calls.append(
            "# forward_backward keeps logits divided up to cross entropy; model(x) gathers them"
        )
    return stream


def give_positions(stream: Stream, extent: Extent, units: dict[str, nn.Module]) -> None:
    """Give the blocks this rank's positions.

    Args:
        stream: as ``context_parallel`` returned it.
        extent: of the model's blocks.
        units: the blocks by name, each with what recomputes it.
    """
    stream.give_shares(rows_of(stream.division, extent, units))
