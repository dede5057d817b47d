"""What a torchtitan configuration in Python says of a job; what is open stays unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.config_file import OPEN
from parastrat.parse.torchtitan import SINGLE_STAGE, reshards, schedule_of
from parastrat.plan import Compile, ContextMethod, Offload, Recompute, Shard
from parastrat.rules.torchtitan_facts import mesh_of
from parastrat.rules.torchtitan_python_facts import (
    POLICY,
    STEP_TOKENS,
    compiles_model,
    context_length,
    micro_batches,
    micro_tokens,
    switch,
    word,
)
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.config_file import ConfigFile
    from parastrat.plan import Mesh

_FLOAT8 = ["Float8LinearConverter.Config"]
_RECOMPUTE = {
    "SelectiveAC.Config": Recompute.SELECTIVE,
    "FullAC.Config": Recompute.FULL,
    "None": Recompute.NONE,
}
#: of ChunkedLossWrapper
_CHUNKS = 8


def python_workload(file: ConfigFile) -> dict[str, Any]:
    """Return the fields of ``Workload`` that are stated, or that torchtitan fills in."""
    length, tokens = context_length(file), _step_tokens(file)
    return {
        "global_batch_size": tokens // length if length and tokens and tokens % length == 0 else None,
        "sequence_length": length,
        "optimizer": Optimizer.ADAMW if file.get("optimizer.class") == "default_adamw" else None,
        "loss_chunks": _chunks(file),
    }


def python_fields(file: ConfigFile) -> dict[str, Any]:
    """Return the fields of ``Plan``; None for those that are open, or that no plan has a word for."""
    mesh = mesh_of(file)
    compiled, offloads = compiles_model(file), switch(file, "training.enable_cpu_offload", default=False)
    parallel = switch(file, "parallelism.enable_sequence_parallel", default=True)
    return {
        "mesh": mesh,
        **_micro_batches(file, mesh),
        "precision": _precision(file),
        "shard": None if mesh is None else Shard.PARAMETERS if mesh.dp_shard * mesh.cp > 1 else Shard.NONE,
        "reshard_after_forward": None
        if file.is_open("parallelism.fsdp_reshard_after_forward")
        else reshards(file, mesh),
        "sequence_parallel": None if mesh is None or parallel is None else mesh.tp > 1 and parallel,
        # its cross entropy is always divided as the head is
        "loss_parallel": None if mesh is None else mesh.tp > 1,
        "async_tp": switch(file, "compile.enable_async_tensor_parallel", default=False),
        "cp_method": ContextMethod.ALL_GATHER,
        "recompute": _recompute(file),
        "offload": None if offloads is None else Offload.PARAMETERS if offloads else Offload.NONE,
        "compile": None if compiled is None else Compile.BLOCK if compiled else Compile.NONE,
        **_pipeline(file, mesh),
    }


def _recompute(file: ConfigFile) -> Recompute | None:
    policy = file.get(POLICY)
    return _RECOMPUTE.get(policy) if isinstance(policy, str) else None


def _chunks(file: ConfigFile) -> int | None:
    if file.get("loss.class") == "CrossEntropyLoss.Config":
        return 1
    chunks = file.get("loss.num_chunks") or _CHUNKS
    is_chunked = file.get("loss.class") == "ChunkedLossWrapper.Config"
    return chunks if is_chunked and isinstance(chunks, int) else None


def _step_tokens(file: ConfigFile) -> int | None:
    """Return the tokens of a step: as stated, or one round of all ranks."""
    stated = file.get(STEP_TOKENS)
    if stated not in (None, -1):
        tokens = file.number(STEP_TOKENS)
        return tokens if tokens is not None and tokens > 0 else None
    mesh, tokens, count = mesh_of(file), micro_tokens(file), micro_batches(file)
    return tokens * count * mesh.dp if mesh is not None and tokens and count else None


def _micro_batches(file: ConfigFile, mesh: Mesh | None) -> Mapping[str, int | None]:
    """Return the micro-batch and the number of them in a step."""
    tokens, length, whole = micro_tokens(file), context_length(file), _step_tokens(file)
    if mesh is None or not tokens or not length or not whole or tokens % length:
        return dict.fromkeys(("micro_batch_size", "gradient_accumulation_steps"))
    steps = whole // (tokens * mesh.dp) if whole % (tokens * mesh.dp) == 0 else None
    if mesh.pp > 1 and steps is not None:
        count = micro_batches(file)
        # rounds drain the pipeline in between; it is as full as in one long one where micro-batches fill it
        fills = count is not None and steps % count == 0 and (steps == count or count >= mesh.pp)
        steps = steps if fills else None
    return {"micro_batch_size": tokens // length, "gradient_accumulation_steps": steps}


def _precision(file: ConfigFile) -> Precision | None:
    converters, family = file.get("model_spec.converters"), file.get("model_spec.family")
    if converters is OPEN or family in (None, OPEN):
        return None
    if converters:
        return Precision.FP8 if converters == _FLOAT8 else None
    kinds = {
        ("bfloat16", "bfloat16"): Precision.BF16,
        ("float32", "bfloat16"): Precision.BF16_MIXED,
        ("float32", "float32"): Precision.FP32,
    }
    weights = word(file, "training.dtype", "float32")
    compute = word(file, "training.mixed_precision_param", "bfloat16")
    return None if weights is None or compute is None else kinds.get((weights, compute))


def _pipeline(file: ConfigFile, mesh: Mesh | None) -> Mapping[str, Any]:
    if mesh is None or mesh.pp == 1:
        return {}
    name = "parallelism.pipeline_parallel_schedule"
    if file.is_open(name, f"{name}_csv") or schedule_of(file) is None:
        return {"pp_schedule": None, "virtual_stages": None}
    schedule, parts = schedule_of(file), file.get("parallelism.module_fqns_per_model_part")
    virtual: int | None = 1 if schedule in SINGLE_STAGE else 2
    if parts is OPEN:
        # one that has more than a stage takes no such schedule
        virtual = virtual if virtual == 1 else None
    elif isinstance(parts, list):
        virtual = len(parts) // mesh.pp if len(parts) % mesh.pp == 0 else None
    elif file.get("parallelism.pipeline_parallel_layers_per_stage") is not None:
        virtual = None
    return {"pp_schedule": schedule, "virtual_stages": virtual}
