"""``parallelize.py`` for plans that divide layers, alone or under DDP, FSDP2 and HSDP."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.emit import python_shard_text as shard_text
from parastrat.emit import python_tensor_text as tensor_text
from parastrat.emit import python_text as text
from parastrat.emit import python_unused_text as unused_text
from parastrat.emit.division import Style
from parastrat.emit.python_parts import (
    COMPUTE,
    MESH_IMPORTS,
    build_mesh,
    data_axes,
    heading,
    loop,
    named_as,
    policy,
    sorted_imports,
)
from parastrat.emit.text_file import EmitError, TextFile
from parastrat.plan import Recompute
from parastrat.units import counted
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.emit.division import Division, Place
    from parastrat.emit.staging import Staging
    from parastrat.plan import Plan


def emit_divided(case: Case, division: Division) -> tuple[TextFile, ...]:
    """Return ``parallelize.py`` for torch 2.13, with ``divide(model, mesh)`` in it; checked already."""
    plan = case.plan
    blocks = plan.mesh.dp > 1 or plan.recompute is not Recompute.NONE
    named = {"container": json.dumps(division.container), "name": division.container}
    body = [
        text.SIGNATURE.format(count=counted(plan.mesh.world_size, "rank"), mesh="DeviceMesh"),
        text.NO_BUFFERS,
        tensor_text.COUNT_CHECK.format(count=division.blocks, **named),
        text.WEIGHTS.format(dtype="bfloat16" if plan.precision is Precision.BF16 else "float32"),
        tensor_text.APPLY,
        tensor_text.NAMES.format(container=division.container, count=division.blocks) if blocks else "",
        text.RECOMPUTE[plan.recompute],
        _over_data(plan, routed=division.routed),
    ]
    definitions = [
        build_mesh(case),
        shard_text.FROM_FIRST_RANK,
        *text.RECOMPUTE_DEFINITIONS[plan.recompute],
        *divided_text(division),
        *([tensor_text.WHOLE_GRADIENTS] if plan.mesh.dp == 1 else []),
        *([unused_text.UNUSED, unused_text.FOLLOW] if plan.mesh.dp > 1 and division.routed else []),
    ]
    lines = [
        text.HEADER.format(
            title=heading(case),
            loop=f"{loop(plan)}\nRanks that differ in tp alone take the same samples."
            + left_whole(plan, division)
            + named_as(division.model),
        ),
        sorted_imports(_imports(plan, "".join(definitions + body))),
        *definitions,
        "".join(body),
    ]
    return (TextFile(path="parallelize.py", text="\n".join(lines)),)


def check_divided(plan: Plan) -> None:
    """Refuse what is not tried beside divided layers.

    Raises:
        EmitError: a loss scale.
    """
    if plan.precision is Precision.FP16_MIXED:
        raise EmitError(
            "plain torch cannot be emitted for precision = fp16-mixed beside tp: it is not tried there",
            hint="plan again with bf16-mixed",
        )


def left_whole(plan: Plan, division: Division) -> str:
    """Return what the header says of activations that the plan counts on being divided."""
    missing = {
        "positions (sequence_parallel)": plan.sequence_parallel and not division.start_of_shares,
        "logits (loss_parallel)": plan.loss_parallel and not division.divides_logits,
    }
    whole = " and ".join(what for what, is_so in missing.items() if is_so)
    return f"\nWhole on each tp rank, though the plan counts on shares: {whole}." if whole else ""


def divided_text(division: Division, staging: Staging | None = None) -> list[str]:
    """Return ``divide(model, mesh)``, and before it the styles that torch has not.

    Args:
        division: of the model.
        staging: of the model, whose stages pass whole activations on; None: there is one.
    """
    start, edges = division.start_of_shares, division.edges if staging else ()
    inside = [place for place in division.places if place not in edges]
    places = [f"        {json.dumps(place.name)}: {_style(place)}," for place in inside]
    ties = [
        tensor_text.TIE.format(first=json.dumps(owners[0]), other=json.dumps(other))
        for owners in division.tied
        for other in owners[1:]
    ]
    divide = tensor_text.DIVIDE.format(
        check=tensor_text.POSITIONS.format(start=json.dumps(start)) if start and not staging else "",
        places="\n".join(places),
        edges=_stage_edges(edges, staging) if staging and edges else "",
        ties="".join(ties),
    )
    own = {"Whole(": tensor_text.WHOLE, "WholeInside(": tensor_text.WHOLE_INSIDE}
    return [*(definition for style, definition in own.items() if f" {style}" in divide), divide]


def _stage_edges(edges: tuple[Place, ...], staging: Staging) -> str:
    has_none = any(set(staging.blocks).isdisjoint(stage) for stage in staging.stages)
    first, last = (_style(replace(place, name="")).replace("\n    ", "\n") for place in edges)
    return tensor_text.STAGE_EDGES.format(
        runs=f"filter(None, {tensor_text.RUNS})" if has_none else tensor_text.RUNS, first=first, last=last
    )


def _style(place: Place) -> str:
    if place.style is Style.LAST_OF_SHARE:
        return _call("tp.PrepareModuleOutput", tensor_text.LAST, beside=len(place.name))
    if place.style not in tensor_text.READERS:
        return tensor_text.STYLES[place.style]
    before, behind, option = tensor_text.READERS[place.style]
    reading = place.reading
    if reading.keyword:
        keyword = json.dumps(reading.keyword)
        given = f"input_kwarg_layouts={{{keyword}: {before}}}"
        got = f"desired_input_kwarg_layouts={{{keyword}: {behind}}}"
    else:
        rest = ", None" * (reading.positional - 1) or ","
        given, got = f"input_layouts=({before}{rest})", f"desired_input_layouts=({behind}{rest})"
    settings = [given, got, *([option] if option else [])]
    return _call("tp.PrepareModuleInput", settings, beside=len(place.name))


def _call(function: str, settings: list[str], *, beside: int) -> str:
    """Return a call behind a name of so many characters, in one line or several."""
    together = ", ".join(settings)
    if beside + len(function) + len(together) < _ONE_LINE:
        return f"{function}({together})"
    inside = [together] if len(together) < _ONE_LINE else [f"{setting}," for setting in settings]
    return f"{function}(\n" + "".join(f"            {line}\n" for line in inside) + "        )"


#: characters of a name and its style beside each other
_ONE_LINE = 93


def _over_data(plan: Plan, *, routed: bool) -> str:
    compute = COMPUTE.get(plan.precision)
    returned = "" if routed else "return "
    unused = tensor_text.REDUCE_UNUSED + text.RETURN if routed else ""
    if plan.shards_parameters:
        sharded = tensor_text.SHARD.format(
            axes=data_axes(plan), policy=policy(plan), reshard=plan.reshard_after_forward, returned=returned
        )
        return sharded + unused
    autocast = text.AUTOCAST.format(dtype=compute).replace("device.type", "mesh.device_type")
    replicated = tensor_text.REPLICATE.format(returned=returned) + unused
    end = replicated if plan.mesh.dp > 1 else tensor_text.GRADIENTS + text.RETURN
    return (autocast if compute else "") + end


def style_imports(code: str) -> list[str]:
    """Return the imports of what divides layers in this code."""
    layouts = [name for name in ("DTensor", "Partial", "Replicate", "Shard") if f"{name}" in code]
    if "distribute_module(" in code:
        layouts.append("distribute_module")
    inside = "WholeInside(" in code
    return [
        "import torch.distributed.tensor.parallel as tp",
        f"from torch.distributed.tensor import {', '.join(layouts)}",
        *(["from torch.nn.utils.stateless import _reparametrize_module"] if inside else []),
    ]


def _imports(plan: Plan, code: str) -> list[str]:
    imports = [
        "import torch",
        "from torch import nn",
        *MESH_IMPORTS,
        *text.RECOMPUTE_IMPORTS[plan.recompute],
        *style_imports(code),
    ]
    if "Counter(" in code:
        imports.append("from collections import Counter")
    if "leave_unused(" in code:
        imports += unused_text.IMPORTS + unused_text.FOLLOW_IMPORTS
    if plan.shards_parameters:
        imports.append(shard_text.FSDP_IMPORTS[0])
    elif plan.mesh.dp > 1:
        imports.append(tensor_text.REPLICATE_IMPORT)
    return imports
