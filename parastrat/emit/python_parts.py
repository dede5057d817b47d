"""What every emitted ``parallelize.py`` has: its title, its mesh, and what the loop must do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from parastrat.emit import python_text as text
from parastrat.emit.shell import title
from parastrat.plan import Backend
from parastrat.units import counted
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.plan import Plan

#: what the forward computes in, where that differs from the weights
COMPUTE = {Precision.BF16_MIXED: "torch.bfloat16", Precision.FP16_MIXED: "torch.float16"}

MESH_IMPORTS = [
    "import os",
    "import torch.distributed as dist",
    "from torch.distributed.device_mesh import DeviceMesh, init_device_mesh",
]


def heading(case: Case) -> str:
    """Return the title, safe in a docstring."""
    return title(case).replace("\\", "/").replace('"', "'")


def named_as(model: str) -> str:
    """Return what the header says of the model that was built; nothing where its class is not known."""
    return f"\nModel: {model}, or another whose modules have the same names." if model else ""


def build_mesh(case: Case) -> str:
    """Return the function that lays the ranks out by the axes that the plan uses."""
    mesh = case.plan.mesh
    axes = {"pp": mesh.pp, "dp_replicate": mesh.dp_replicate, "dp_shard": mesh.dp_shard, "tp": mesh.tp}
    used = {name: degree for name, degree in axes.items() if degree > 1}
    by_gloo = case.launch.device == "cpu" and Backend.GLOO.value in case.launch.backend
    one = by_gloo and (mesh.dp_shard > 1 or mesh.tp > 1)
    begin = text.BUILD_MESH.format(
        device=json.dumps(case.launch.device),
        backend=json.dumps(case.launch.backend),
        shape=_tuple_of([str(degree) for degree in used.values()]),
        names=_tuple_of([json.dumps(name) for name in used]),
        threads=text.ONE_THREADED if one else "",
    )
    return text.ONE_THREAD + begin if one else begin


def data_axes(plan: Plan) -> str:
    """Return the axes of the mesh over which FSDP2 shards and replicates."""
    return '"dp_replicate", "dp_shard"' if plan.mesh.dp_replicate > 1 else '"dp_shard"'


def policy(plan: Plan) -> str:
    """Return the settings of FSDP2's ``MixedPrecisionPolicy``."""
    compute = COMPUTE.get(plan.precision)
    settings = [f"param_dtype={compute}"] if compute else []
    if plan.precision is not Precision.FP32:
        settings.append("reduce_dtype=torch.float32")
    return ", ".join(settings)


def _tuple_of(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def sorted_imports(imports: list[str]) -> str:
    """Return the import lines as a linter sorts them."""
    lines = _merged(imports)
    standard = [line for line in lines if "torch" not in line]
    rest = sorted((line for line in lines if "torch" in line), key=_import_order)
    parts = [sorted(standard, key=_import_order), rest]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _merged(imports: list[str]) -> list[str]:
    """Return one line for each module of which names are imported."""
    names: dict[str, list[str]] = {}
    for line in imports:
        module, _, imported = line.partition(" import ")
        names.setdefault(module, []).extend(imported.split(", ") if imported else [])
    return [
        f"{module} import {', '.join(sorted(set(imported)))}" if imported else module
        for module, imported in names.items()
    ]


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def loop(plan: Plan, chunks: int = 1) -> str:
    """Return what the training loop must do for the plan's batch and precision, and the model for its loss.

    Args:
        plan: the plan.
        chunks: of the loss.
    """
    steps, samples = plan.gradient_accumulation_steps, plan.micro_batch_size
    count = "one micro-batch" if steps == 1 else f"{steps} micro-batches"
    batch = f"a global batch of {plan.global_batch_size}"
    lines = [f"One optimizer step of a rank is {count} of {counted(samples, 'sample')}, {batch}."]
    if steps > 1:
        delayed = ""
        if plan.shards_parameters and plan.mesh.dp_replicate > 1:
            delayed = " Call model.set_requires_all_reduce(is_last) before each backward."
        elif plan.mesh.world_size > 1 and not plan.shards_parameters:
            delayed = " Run all micro-batches but the last under model.no_sync()."
        lines.append(f"Divide each loss by {steps}.{delayed}")
    if plan.precision is Precision.FP16_MIXED:
        lines.append("Scale the loss with torch.amp.GradScaler: fp16 gradients vanish below 6e-8.")
    if chunks > 1:
        lines.append(
            f"The forward makes the logits of its loss in {chunks} chunks, each under a checkpoint."
        )
    return "\n".join(lines)
