"""``parastrat diff``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.flags import OtherHardware, OtherModel
from parastrat.errors import UsageError

if TYPE_CHECKING:
    from parastrat.snapshot import DeviceSnapshot

_Snapshot = Annotated[
    Path,
    typer.Argument(
        metavar="snapshot.pickle",
        help="What torch.cuda.memory._dump_snapshot wrote; nothing in it is run.",
        show_default=False,
    ),
]
_Plan = Annotated[Path, typer.Argument(metavar="[plan.toml]", help="The plan that ran.")]
_Device = Annotated[
    int | None, typer.Option("--device", min=0, metavar="N", help="Where the snapshot shows several.")
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def diff(
    snapshot: _Snapshot,
    plan: _Plan = Path("plan.toml"),
    device: _Device = None,
    model: OtherModel = None,
    on: OtherHardware = None,
    *,
    as_json: _AsJson = False,
) -> None:
    """Hold a CUDA memory snapshot against a plan's estimate, line by line.

    With a history (torch.cuda.memory._record_memory_history) the snapshot's peak is replayed.
    """
    from parastrat.assess import assess
    from parastrat.cli.output import paper, show, show_json
    from parastrat.cli.plan_case import PlanSource, planned_case
    from parastrat.memory.reconciled import held_by, reconciled
    from parastrat.parse import read_plan
    from parastrat.ranks.states import context_bytes
    from parastrat.report.reconciliation import Reconciliation, reconciliation_json, reconciliation_text
    from parastrat.sources.memory_snapshot import read_snapshot

    shown = _chosen(read_snapshot(snapshot), device)
    source = PlanSource(path=plan, parsed=read_plan(plan), model=model, on=on)
    planned = planned_case(source, whole_model=True)
    # estimated anew: a plan file keeps the total of the version that wrote it
    case, held = assess(planned.facts, planned.plan), held_by(shown)
    lines = reconciled(case.estimate.memory, context_bytes(case.facts), held)
    found = Reconciliation(case=case, device=shown.device, held=held, lines=lines)
    if as_json:
        show_json(reconciliation_json(found))
    else:
        show(reconciliation_text(found, paper()))


def _chosen(devices: tuple[DeviceSnapshot, ...], device: int | None) -> DeviceSnapshot:
    """Return the device that is meant.

    Raises:
        UsageError: the snapshot has none of that number, or several and none is named.
    """
    found = [each for each in devices if device in (None, each.device)]
    if len(found) == 1:
        return found[0]
    known = ", ".join(str(each.device) for each in devices)
    wanted = "several devices" if device is None else f"no device {device}"
    raise UsageError(f"the snapshot shows {wanted}", hint=f"name one with --device: {known}")
