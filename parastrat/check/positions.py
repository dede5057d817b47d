"""Where in a file the facts stand that a rule has read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parastrat.columns import Columns
from parastrat.config_file import ConfigFormat
from parastrat.rules.torchtitan_facts import DEGREES
from parastrat.rules.torchtitan_python_facts import LENGTH, MICRO_BATCHES, MICRO_TOKENS, STEP_TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from parastrat.config_file import ConfigFile

_ACCELERATE = {
    "dp_replicate": "parallelism_config.parallelism_config_dp_replicate_size",
    "dp_shard": "parallelism_config.parallelism_config_dp_shard_size",
    "cp": "parallelism_config.parallelism_config_cp_size",
    "tp": "parallelism_config.parallelism_config_tp_size",
    "precision": "mixed_precision",
    "world_size": "num_processes",
    "dp": "num_processes",
    "shard": "fsdp_config",
    "offload": "fsdp_config",
}
_DEEPSPEED = {
    "precision": "bf16",
    "shard": "zero_optimization.stage",
    "offload": "zero_optimization",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "global_batch_size": "train_batch_size",
}
#: of torchtitan's formats alike
_OF_TORCHTITANS: Mapping[str, str | tuple[str, ...]] = {
    **DEGREES,
    "dp": DEGREES["dp_shard"],
    "world_size": DEGREES["dp_shard"],
    "shard": DEGREES["dp_shard"],
    "reshard_after_forward": "parallelism.fsdp_reshard_after_forward",
    "pp_schedule": "parallelism.pipeline_parallel_schedule",
    "offload": "training.enable_cpu_offload",
    "compile": "compile.enable",
}
_TORCHTITAN: Mapping[str, str | tuple[str, ...]] = {
    **_OF_TORCHTITANS,
    "loss_parallel": "parallelism.disable_loss_parallel",
    "async_tp": "parallelism.enable_async_tensor_parallel",
    "cp_method": "parallelism.context_parallel_rotate_method",
    "virtual_stages": "parallelism.pipeline_parallel_schedule",
    "micro_batch_size": "training.local_batch_size",
    "gradient_accumulation_steps": "training.global_batch_size",
    "global_batch_size": "training.global_batch_size",
    "sequence_length": "training.seq_len",
    # fp8 is a converter's
    "precision": ("model.converters", "training.dtype", "training.mixed_precision_param"),
    "recompute": "activation_checkpoint.mode",
    "memory_total": "training.local_batch_size",
}
_TORCHTITAN_PYTHON: Mapping[str, str | tuple[str, ...]] = {
    **_OF_TORCHTITANS,
    "sequence_parallel": "parallelism.enable_sequence_parallel",
    "async_tp": "compile.enable_async_tensor_parallel",
    "virtual_stages": (
        "parallelism.module_fqns_per_model_part",
        "parallelism.pipeline_parallel_schedule",
    ),
    "micro_batch_size": MICRO_TOKENS,
    "gradient_accumulation_steps": (STEP_TOKENS, MICRO_BATCHES),
    "global_batch_size": STEP_TOKENS,
    "sequence_length": LENGTH,
    # fp8 is a converter's
    "precision": ("model_spec.converters", "training.dtype", "training.mixed_precision_param"),
    "recompute": "activation_checkpoint",
    "loss_chunks": "loss.num_chunks",
    "memory_total": MICRO_TOKENS,
}

#: of Megatron-LM's options: the line that hands them over
_BEHIND_LAUNCHERS = {
    **dict.fromkeys((*DEGREES, "dp", "shard", "recompute", "precision", "sequence_parallel"), "own"),
    **dict.fromkeys(("micro_batch_size", "gradient_accumulation_steps", "global_batch_size"), "own"),
    **dict.fromkeys(("sequence_length", "pp_schedule", "virtual_stages", "memory_total"), "own"),
}

_KEYS: Mapping[ConfigFormat, Mapping[str, str | tuple[str, ...]]] = {
    ConfigFormat.ACCELERATE: _ACCELERATE,
    ConfigFormat.DEEPSPEED: _DEEPSPEED,
    ConfigFormat.TORCHTITAN: _TORCHTITAN,
    ConfigFormat.TORCHTITAN_PYTHON: _TORCHTITAN_PYTHON,
}


class ReadColumns(Columns):
    """Columns that remember what was read of them."""

    __slots__ = ("read",)

    read: list[str]

    def __init__(self, known: Mapping[str, Any]) -> None:
        super().__init__(known)
        object.__setattr__(self, "read", [])

    def __getattr__(self, name: str) -> Any:
        self.read.append(name)
        return super().__getattr__(name)


def positions_of(file: ConfigFile, read: Iterable[str]) -> Iterator[str]:
    """Yield the keys of a file that state the facts which a rule has read, the first read first."""
    for name in read:
        if file.format is ConfigFormat.PLAN:
            candidates = [f"plan.{name}", f"workload.{name}", f"hardware.{name}"]
        else:
            behind = _BEHIND_LAUNCHERS if file.get("megatron") is not None else {}
            table = _KEYS.get(file.format, behind)
            stated = table.get(name, "")
            candidates = [stated] if isinstance(stated, str) else [*stated]
        yield from (key for key in candidates if key in file.positions)
