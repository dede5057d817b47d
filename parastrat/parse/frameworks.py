"""What other tools' configurations say of a plan; what they leave open stays unknown."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.parse.megatron import megatron_fields, megatron_workload
from parastrat.parse.torchtitan import torchtitan_fields, torchtitan_workload
from parastrat.parse.torchtitan_plan import python_fields, python_workload
from parastrat.plan import Mesh, Offload, Shard
from parastrat.rules.accelerate import degree
from parastrat.rules.launch_facts import count_of, processes_of, told_nodes
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.finding import Hit

#: from here on a number counts no machines
_MOST = 10**7
_STAGES = {0: Shard.NONE, 1: Shard.OPTIMIZER, 2: Shard.GRADIENTS, 3: Shard.PARAMETERS}
_PRECISIONS = {
    "no": Precision.FP32,
    "fp16": Precision.FP16_MIXED,
    "bf16": Precision.BF16_MIXED,
    "fp8": Precision.FP8,
}

#: keys of accelerate's ``deepspeed_config``, as DeepSpeed calls them
_DEEPSPEED_KEYS = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
}


def plan_fields(file: ConfigFile) -> Mapping[str, Any]:
    """Return the fields of ``Plan`` that a configuration states."""
    if file.format is ConfigFormat.ACCELERATE:
        found = _of_accelerate(file)
    elif file.format is ConfigFormat.TORCHTITAN:
        found = torchtitan_fields(file)
    elif file.format is ConfigFormat.TORCHTITAN_PYTHON:
        found = python_fields(file)
    elif file.get("megatron") is not None:
        found = megatron_fields(file)
    else:
        found = _of_deepspeed(file) if file.format is ConfigFormat.DEEPSPEED else {}
    if file.format is ConfigFormat.DEEPSPEED and file.devices is not None and not _splits_models(file):
        shards = found["shard"] not in (None, Shard.NONE)
        found["mesh"] = Mesh(dp_shard=file.devices) if shards else Mesh(dp_replicate=file.devices)
    return _stated(found)


def _stated(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _splits_models(file: ConfigFile) -> bool:
    """Whether DeepSpeed is told of axes beside the data's, whose sizes may stand in the script."""
    sections = ("pipeline", "tensor_parallel", "expert_parallel", "sequence_parallel_size", "hybrid_engine")
    return any(file.get(name) is not None for name in sections)


def workload_fields(file: ConfigFile) -> Mapping[str, Any]:
    """Return the fields of ``Workload`` that a configuration states."""
    if file.format is ConfigFormat.TORCHTITAN:
        return _stated(torchtitan_workload(file))
    if file.format is ConfigFormat.TORCHTITAN_PYTHON:
        return _stated(python_workload(file))
    if file.get("megatron") is not None:
        return _stated(megatron_workload(file))
    batch = file.number("train_batch_size") if file.format is ConfigFormat.DEEPSPEED else None
    return {"global_batch_size": batch} if batch is not None and batch > 0 else {}


def deepspeed_part(file: ConfigFile) -> ConfigFile | None:
    """Return DeepSpeed's configuration that accelerate makes of its own keys; None where it makes none."""
    section = "deepspeed_config"
    stated = file.get(section)
    in_a_file = file.get(f"{section}.deepspeed_config_file") is not None
    if file.format is not ConfigFormat.ACCELERATE or not isinstance(stated, dict) or in_a_file:
        return None
    # accelerate puts the script's batch in place of this one; the stage is its default
    table: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    positions: dict[str, tuple[int, int]] = {}
    for name, key in _DEEPSPEED_KEYS.items():
        if stated.get(name) is None or (name.endswith("_path") and stated[name] == "none"):
            continue
        *sections, last = key.split(".")
        inner = table
        for part in sections:
            inner = inner.setdefault(part, {})
        # as accelerate hands it on
        inner[last] = str(stated[name]).lower() if name.endswith("_device") else stated[name]
        positions[key] = file.positions.get(f"{section}.{name}", (1, 1))
        # findings about a table stand at the first key that it is made of
        positions.setdefault(".".join(sections), positions[key])
    return ConfigFile(format=ConfigFormat.DEEPSPEED, table=table, positions=positions)


def in_accelerates_words(hit: Hit) -> Hit:
    """Return what a rule says of a part of accelerate's file, with the keys of that file."""
    text = hit.fix.replace('"stage":', "zero_stage:").replace('"nvme_path":', "the section's _nvme_path:")
    return replace(hit, fix=text)


def launch_fields(file: ConfigFile) -> Mapping[str, Any]:
    """Return the fields of ``Launch`` that a script states."""
    if file.format is not ConfigFormat.SCRIPT:
        return {}
    stated = {
        "nodes": told_nodes(file) or count_of(file, "sbatch.nodes") or count_of(file, "env.PET_NNODES"),
        "ranks_per_node": processes_of(file) or count_of(file, "env.PET_NPROC_PER_NODE"),
    }
    counts = {name: number for name, number in stated.items() if number and number < _MOST}
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
    if file.is_on("fsdp_config.fsdp_offload_params"):
        found["offload"] = Offload.PARAMETERS
    inner = deepspeed_part(file)
    if inner is not None and file.get("distributed_type") == "DEEPSPEED":
        found |= {name: _of_deepspeed(inner)[name] for name in ("shard", "offload")}
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
