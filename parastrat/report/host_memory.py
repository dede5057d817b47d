"""The memory that a plan takes of each host, with its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.records import plain
from parastrat.report.numbers import size
from parastrat.report.text import Line, Tone, heading, labelled, wrapped

if TYPE_CHECKING:
    from parastrat.memory.host import HostMemory
    from parastrat.report.text import Paper

_WIDTH = 13


def host_memory_lines(host: HostMemory, paper: Paper) -> list[Line]:
    """Return what the processes of one host take of its memory, under which assumptions."""
    whole = "" if host.capacity is None else f" of {size(host.capacity)}"
    lines = heading(f"Memory of each host: up to {size(host.total)}{whole}", paper)
    processes = "process" if host.ranks == 1 else "processes"
    each = size(host.processes / host.ranks)
    rows = [(f"{host.ranks} {processes}", f"{size(host.processes)}, {each} each before there is a model")]
    if host.offloaded:
        rows.append(("offloaded", f"{size(host.offloaded)} of parameters, gradients, optimizer states"))
    if host.rounding:
        pinned = "rounding pinned buffers up to powers of two; none with pin_memory=False"
        rows.append(("pinning", f"up to {size(host.rounding)} by {pinned}"))
    rows.append(("loading", f"up to {size(host.loading)}, weights tensor by tensor, the module on meta"))
    rows.append(("saving", f"up to {size(host.checkpointing)}, by torch.distributed.checkpoint.save"))
    for label, text in rows:
        lines += labelled(label, text, paper, width=_WIDTH)
    more = (
        f"more, if every process builds or loads the whole model: {size(host.whole_models)}; if "
        f"checkpoints are staged for async_save: {size(host.staged_checkpoint)}"
    )
    lines += wrapped(more, paper, first="  ", tone=Tone.FAINT)
    return lines + wrapped("left out: data loaders, page cache", paper, first="  ", tone=Tone.FAINT)


def host_memory_table(host: HostMemory | None) -> dict[str, Any] | None:
    """Return the same in bytes, as JSON has it; None where the device's memory is the host's."""
    if host is None:
        return None
    return {**plain(host), "least": host.least, "total": host.total}
