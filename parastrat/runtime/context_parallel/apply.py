"""A module whose positions are divided over the context-parallel ranks, as the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from parastrat.plan import Recompute
from parastrat.runtime.agreement import alike
from parastrat.runtime.context_parallel.beside_layers import Both, further_ranks, proven_together
from parastrat.runtime.context_parallel.choice import blocks_of, chosen_division, stream_of
from parastrat.runtime.tensor_parallel.apply import agreed_seed, check_alike
from parastrat.runtime.tensor_parallel.copies import Source
from parastrat.runtime.tensor_parallel.dropout import Regions, drawing_apart, drops

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
            regions = Regions(
                wrapping.device, seed=seed, tp_rank=mesh.get_local_rank(), dp_rank=wrapping.mesh.dp_rank
            )
            regions.around(module)
        stream.draws = drawing_apart(wrapping.device, mesh.get_local_rank())
        wrapping.calls.append("# a training forward draws alike on all cp ranks, but in the blocks")
    blocks = blocks_of(module, division.container)
    stream.work_on_shares([*blocks.values()])
    stream.end(module)
    share = "a piece from either end" if division.balanced else "a piece"
    wrapping.calls.append(
        f"# each rank of context['cp'] has {share} of every sequence in {type(module).__name__}'s "
        f"{len(blocks)} blocks, whose attention gathers keys and values"
    )
    if division.head:
        place = "in" if division.whole_between else "behind them, up to"
        wrapping.calls.append(f"# and {place} {division.head}")
    if division.loss:
        wrapping.calls.append(
            "# forward_backward keeps logits divided up to cross entropy; model(x) gathers them"
        )
    return stream


def give_positions(stream: Stream, units: dict[str, nn.Module]) -> None:
    """Give the blocks this rank's positions.

    Args:
        stream: as ``context_parallel`` returned it.
        units: the blocks by name, each with what recomputes it.
    """
    inside = f"{stream.division.container}."
    stream.give_shares([unit for name, unit in units.items() if name.startswith(inside)])
