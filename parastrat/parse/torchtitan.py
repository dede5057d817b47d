"""What a torchtitan configuration (TOML, up to release 0.2.2) says of a job; what is open stays unknown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.plan import Compile, ContextMethod, Mesh, Offload, PipelineSchedule, Recompute, Shard
from parastrat.rules.torchtitan_facts import (
    LENGTH,
    LOCAL_BATCH,
    PIPELINE_MICRO_BATCH,
    SCHEDULE,
    compiles,
    mesh_of,
    no_mixed_precision,
    number_of,
)
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from parastrat.config_file import ConfigFile

#: keys that other tables had before
_MOVED = (
    "context_parallel_degree",
    "context_parallel_rotate_method",
    "data_parallel_replicate_degree",
    "data_parallel_shard_degree",
    "disable_loss_parallel",
    "enable_async_tensor_parallel",
    "fsdp_reshard_after_forward",
    "pipeline_parallel_degree",
    "pipeline_parallel_schedule",
    "pipeline_parallel_schedule_csv",
    "tensor_parallel_degree",
)
#: keys of earlier versions that say the same, by those of the last
_EARLIER: Mapping[str, tuple[str, ...]] = {
    **{f"parallelism.{name}": (f"training.{name}", f"experimental.{name}") for name in _MOVED},
    "training.local_batch_size": ("training.batch_size",),
    "compile.enable": ("training.compile",),
}
#: keys of earlier versions that say it in another way
_CHANGED = (
    "experimental.pipeline_parallel_microbatches",
    "experimental.pipeline_parallel_split_points",
    "float8.enable_float8_linear",
    "parallelism.pipeline_parallel_microbatches",
    "parallelism.pipeline_parallel_split_points",
    "training.data_parallel_degree",
    "training.data_parallel_type",
    "training.enable_float8_linear",
    "training.enable_fp8_linear",
    "training.enable_loss_parallel",
    "training.fp8_linear",
)
_EXPERTS_TP = "parallelism.expert_tensor_parallel_degree"
_RECOMPUTE = {"none": Recompute.NONE, "full": Recompute.FULL}
_METHODS = {"allgather": ContextMethod.ALL_GATHER, "alltoall": ContextMethod.RING}
#: alike in what they keep
_OPTIMIZERS = {"Adam": Optimizer.ADAMW, "AdamW": Optimizer.ADAMW}
#: schedules of one stage on each rank
SINGLE_STAGE = frozenset({PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B})


def with_later_names(file: ConfigFile) -> ConfigFile:
    """Return a file with what it says by keys of earlier versions said by the last one's.

    What means something else since leaves the job open.
    """
    table = {name: dict(value) if isinstance(value, dict) else value for name, value in file.table.items()}
    positions = dict(file.positions)
    for now, olds in _EARLIER.items():
        section, _, name = now.partition(".")
        for old in olds:
            stated, inside = file.get(old), table.setdefault(section, {})
            if stated is not None and isinstance(inside, dict) and name not in inside:
                inside[name] = stated
                positions[now] = positions.get(old, (1, 1))
    if any(file.get(key) is not None for key in _CHANGED):
        table["open"] = True
    return replace(file, table=table, positions=positions)


def schedule_of(file: ConfigFile) -> PipelineSchedule | None:
    """Return the schedule of a pipeline; None where it is read from a table, or of another name."""
    if file.get("parallelism.pipeline_parallel_schedule_csv"):
        return None
    name = str(file.get("parallelism.pipeline_parallel_schedule") or SCHEDULE).lower()
    return next((each for each in PipelineSchedule if each.value.lower() == name), None)


def torchtitan_workload(file: ConfigFile) -> dict[str, Any]:
    """Return the fields of ``Workload`` that are stated, or that torchtitan fills in."""
    local, mesh = number_of(file, "training.local_batch_size", LOCAL_BATCH), mesh_of(file)
    stated = file.number("training.global_batch_size")
    batch = stated if stated is not None and stated > 0 else None
    if batch is None and local is not None and mesh is not None:
        batch = local * mesh.dp
    return {
        "global_batch_size": batch,
        "sequence_length": number_of(file, "training.seq_len", LENGTH),
        # one that steps within backward keeps no gradients
        "optimizer": None
        if file.is_on("optimizer.early_step_in_backward")
        else _OPTIMIZERS.get(str(file.get("optimizer.name") or "AdamW")),
    }


def torchtitan_fields(file: ConfigFile) -> dict[str, Any]:
    """Return the fields of ``Plan``; None for those that are open, or that no plan has a word for."""
    mesh = mesh_of(file)
    if mesh is not None and mesh.ep > 1 and (file.number(_EXPERTS_TP) or 1) > 1:
        # a plan's experts are whole on their rank
        mesh = None
    shards = None if mesh is None else mesh.dp_shard * mesh.cp > 1
    return {
        "mesh": mesh,
        **_micro_batches(file, mesh),
        "precision": _precision(file, mesh),
        "shard": None if shards is None else Shard.PARAMETERS if shards else Shard.NONE,
        "reshard_after_forward": reshards(file, mesh),
        "sequence_parallel": None if mesh is None else mesh.tp > 1,
        "loss_parallel": None
        if mesh is None
        else mesh.tp > 1 and not file.is_on("parallelism.disable_loss_parallel"),
        "async_tp": file.is_on("parallelism.enable_async_tensor_parallel"),
        "cp_method": _METHODS.get(file.get("parallelism.context_parallel_rotate_method") or "allgather"),
        "recompute": _recompute(file),
        "offload": Offload.PARAMETERS if file.is_on("training.enable_cpu_offload") else Offload.NONE,
        "compile": Compile.BLOCK if compiles(file) else Compile.NONE,
        **_pipeline(file, mesh),
    }


def _micro_batches(file: ConfigFile, mesh: Mesh | None) -> Mapping[str, int | None]:
    """Return the micro-batch and their number; a pipeline cuts each local batch again."""
    local = number_of(file, "training.local_batch_size", LOCAL_BATCH)
    batch = file.number("training.global_batch_size")
    names = ("micro_batch_size", "gradient_accumulation_steps")
    if mesh is None or local is None:
        return dict.fromkeys(names)
    rounds: int | None = 1
    if batch is not None and batch > 0:
        rounds = batch // (local * mesh.dp) if batch % (local * mesh.dp) == 0 else None
    if mesh.pp == 1:
        return dict(zip(names, (local, rounds), strict=True))
    micro = number_of(file, "parallelism.pipeline_parallel_microbatch_size", PIPELINE_MICRO_BATCH)
    if micro is None or local % micro:
        return dict.fromkeys(names)
    # rounds drain the pipeline in between; it is as full as in one long one where micro-batches fill it
    fills = rounds == 1 or local // micro >= mesh.pp
    return dict(zip(names, (micro, local // micro * rounds if rounds and fills else None), strict=True))


def _precision(file: ConfigFile, mesh: Mesh | None) -> Precision | None:
    converters = file.get("model.converters") or []
    if any(name in str(converters) for name in ("float8", "mx")):
        return Precision.FP8 if converters == ["float8"] else None
    if file.get("training.dtype") == "bfloat16":
        return Precision.BF16
    if file.get("training.mixed_precision_param") == "float32":
        return Precision.FP32
    if mesh is None:
        return None
    return Precision.FP32 if no_mixed_precision(mesh) else Precision.BF16_MIXED


def reshards(file: ConfigFile, mesh: Mesh | None) -> bool | None:
    """Return whether parameters are freed between forward and backward."""
    policy = file.get("parallelism.fsdp_reshard_after_forward") or "default"
    if policy in ("always", "never"):
        return bool(policy == "always")
    return None if mesh is None else mesh.pp == 1


def _recompute(file: ConfigFile) -> Recompute | None:
    mode = str(file.get("activation_checkpoint.mode") or "selective")
    if mode != "selective":
        return _RECOMPUTE.get(mode)
    option = str(file.get("activation_checkpoint.selective_ac_option") or "2")
    # every second block, which is the default, and every third are no policy of a plan
    return {"op": Recompute.SELECTIVE, "1": Recompute.FULL}.get(option)


def _pipeline(file: ConfigFile, mesh: Mesh | None) -> Mapping[str, Any]:
    if mesh is None or mesh.pp == 1:
        return {}
    schedule, parts = schedule_of(file), file.get("parallelism.module_fqns_per_model_part")
    if schedule is None:
        return {"pp_schedule": None, "virtual_stages": None}
    virtual: int | None = 1 if schedule in SINGLE_STAGE else 2
    if file.get("parallelism.pipeline_parallel_layers_per_stage") is not None:
        virtual = None
    if isinstance(parts, list):
        virtual = len(parts) // mesh.pp if len(parts) % mesh.pp == 0 else None
    return {"pp_schedule": schedule, "virtual_stages": virtual}
