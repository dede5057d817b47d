"""The plan file: everything that is needed to emit, verify and run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat import __version__
from parastrat.parse.parsed import SCHEMA, ModelFingerprint
from parastrat.records import plain, without_none

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.estimate import Estimate
    from parastrat.plan import Plan


def plan_toml(case: Case, *, stored_ref: str | None = None) -> str:
    """Return the text of a plan file, schema ``parastrat.plan/1``, that ``read_plan`` reads back, equal.

    Args:
        case: the plan with its facts. To write a plan again that was read, ``case.model`` may be a
            ``FingerprintedModel``.
        stored_ref: MODEL as the file shall store it (see ``relative_ref``); None stores it as it is.
    """
    import tomli_w  # noqa: PLC0415 - only writing needs it

    model = ModelFingerprint(
        ref=stored_ref or case.model.ref,
        parameters=case.model.parameters,
        blocks=case.model.layers,
        changing_buffers=case.model.changing_buffers,
        routed=case.model.routed,
    )
    hardware = plain(case.hardware)
    table = {
        "schema": SCHEMA,
        "model": plain(model),
        "hardware": {"ref": hardware.pop("name"), **hardware},
        "workload": plain(case.workload),
        "plan": plan_table(case.plan),
        "launch": plain(case.launch),
        "estimate": _estimate_table(case.estimate, case.stack.name),
    }
    return tomli_w.dumps(without_none(table))


def plan_table(plan: Plan) -> dict[str, Any]:
    """Return the plan's fields with the mesh's axes flat among them, and ``strategy``, which is derived."""
    table = plain(plan)
    return {"strategy": plan.strategy, **table.pop("mesh"), **table}


def _estimate_table(estimate: Estimate, stack: str) -> dict[str, Any]:
    table = plain(estimate)
    table["memory"]["total"] = estimate.memory.total
    table["time"]["step"] = estimate.time.step
    return {"parastrat": __version__, "stack": stack, **table}
