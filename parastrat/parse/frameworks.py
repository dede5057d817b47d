"""What accelerate's and DeepSpeed's configurations say of a plan; what they leave open stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.config_file import ConfigFormat
from parastrat.plan import Mesh, Offload, Shard
from parastrat.rules.accelerate import degree
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.config_file import ConfigFile

#: a longer number counts no machines
_DIGITS = 8
_STAGES = {0: Shard.NONE, 1: Shard.OPTIMIZER, 2: Shard.GRADIENTS, 3: Shard.PARAMETERS}
_PRECISIONS = {
    "no": Precision.FP32,
    "fp16": Precision.FP16_MIXED,
    "bf16": Precision.BF16_MIXED,
    "fp8": Precision.FP8,
}


def plan_fields(file: ConfigFile) -> Mapping[str, Any]:
    """Return the fields of ``Plan`` that a configuration states."""
    if file.format is ConfigFormat.ACCELERATE:
        found = _of_accelerate(file)
    else:
        found = _of_deepspeed(file) if file.format is ConfigFormat.DEEPSPEED else {}
    return {name: value for name, value in found.items() if value is not None}


def launch_fields(file: ConfigFile) -> Mapping[str, Any]:
    """Return the fields of ``Launch`` that a script states."""
    if file.format is not ConfigFormat.SCRIPT:
        return {}
    stated = {
        "nodes": file.get("torchrun.nnodes") or file.get("sbatch.nodes"),
        "ranks_per_node": file.get("torchrun.nproc-per-node"),
    }
    counts = {
        name: int(value)
        for name, value in stated.items()
        if isinstance(value, str) and value.isdecimal() and 0 < len(value) < _DIGITS
    }
    if len(counts) == len(stated):
        counts["world_size"] = counts["nodes"] * counts["ranks_per_node"]
    return {**counts, "env": dict(file.get("env") or {})}


def _of_accelerate(file: ConfigFile) -> dict[str, Any]:
    precision = file.get("mixed_precision")
    found: dict[str, Any] = {"precision": _PRECISIONS.get("no" if precision is False else str(precision))}
    world = file.number("num_processes")
    if file.get("parallelism_config") is not None:
        degrees = {axis: degree(file, axis) for axis in ("dp_replicate", "dp_shard", "cp", "tp")}
        if degree(file, "sp") == 1 and min(degrees.values()) >= 1:
            found["mesh"] = Mesh(**degrees)
    elif world is not None and world >= 1:
        kind = str(file.get("distributed_type")).upper()
        if kind == "FSDP":
            found["mesh"] = Mesh(dp_shard=world)
        elif kind.startswith("MULTI_"):
            found["mesh"] = Mesh(dp_replicate=world)
    if "mesh" in found:
        shards = found["mesh"].dp_shard * found["mesh"].cp > 1
        found["shard"] = Shard.PARAMETERS if shards else Shard.NONE
    stage = file.number("deepspeed_config.zero_stage")
    if stage in _STAGES:
        found["shard"] = _STAGES[stage]
    return found


def _of_deepspeed(file: ConfigFile) -> dict[str, Any]:
    formats = {"fp16": Precision.FP16_MIXED, "bf16": Precision.BF16_MIXED}
    enabled = [precision for name, precision in formats.items() if file.is_on(f"{name}.enabled")]
    zero = "zero_optimization"
    offload = None
    if file.get(f"{zero}.offload_optimizer.device") in ("cpu", "nvme"):
        offload = Offload.OPTIMIZER
    if file.get(f"{zero}.offload_param.device") in ("cpu", "nvme"):
        offload = Offload.PARAMETERS
    micro, steps = file.number("train_micro_batch_size_per_gpu"), file.number("gradient_accumulation_steps")
    return {
        "precision": enabled[0] if len(enabled) == 1 else None,
        "shard": _STAGES.get(file.number(f"{zero}.stage") or 0),
        "offload": offload,
        "micro_batch_size": micro if micro and micro > 0 else None,
        "gradient_accumulation_steps": steps if steps and steps > 0 else None,
    }
