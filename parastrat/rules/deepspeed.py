"""PS63x and PS64x: DeepSpeed's JSON, as ``deepspeed.initialize`` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.config_file import ConfigFile

_SOURCE = "https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/runtime"
_DOCS = "https://www.deepspeed.ai/docs/config-json/"
_FORMAT = ConfigFormat.DEEPSPEED

_BATCH, _MICRO, _STEPS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)
_ZERO = "zero_optimization"
#: old keys of ``zero_optimization``, with what took their place
_OLD = {
    "cpu_offload": 'write "offload_optimizer": {"device": "cpu"}',
    "cpu_offload_params": 'write "offload_param": {"device": "cpu"}',
    "cpu_offload_param": 'write "offload_param": {"device": "cpu"}',
    "cpu_offload_use_pin_memory": 'write "pin_memory" inside offload_optimizer or offload_param',
    "stage3_gather_fp16_weights_on_model_save": "write stage3_gather_16bit_weights_on_model_save",
}


@file_rule(
    "PS630", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/zero/partition_parameters.py", covers=("PIT403",)
)
def one_short_format(file: ConfigFile) -> Iterator[Hit]:
    """fp16 and bf16 exclude each other.

    The engine holds the weights in one format, and stops when two are asked for. bf16 needs no loss scale;
    it is the better one where the GPU has it.
    """
    if file.is_on("fp16.enabled") and file.is_on("bf16.enabled"):
        yield Hit(
            message="fp16 and bf16 are both enabled",
            fix="leave bf16 on GPUs that have it (A100 and later), and remove fp16",
            key="fp16.enabled",
        )


@file_rule("PS631", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/config.py", covers=("PIT302",))
def batch_is_micro_batches(file: ConfigFile) -> Iterator[Hit]:
    """The batch is micro-batch x accumulation x data-parallel ranks.

    DeepSpeed asserts it when the engine starts. Whatever the number of ranks, it must be whole.
    """
    batch, steps = file.number(_BATCH), file.number(_STEPS) or 1
    # without a micro-batch DeepSpeed makes one of the others, which then must divide as well
    micro = 1 if file.get(_MICRO) is None else file.number(_MICRO)
    if batch and micro and steps > 0 and micro > 0 and batch % (micro * steps):
        factors = (
            f"{steps} accumulation steps"
            if file.get(_MICRO) is None
            else f"{micro} x {steps} accumulation steps"
        )
        yield Hit(
            message=f"{_BATCH} {batch} is no multiple of {factors}",
            fix=f"write {_BATCH} = {micro * steps} times the number of data-parallel ranks",
            key=_BATCH,
        )


@file_rule("PS632", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/config.py", covers=("PIT303",))
def batch_is_stated(file: ConfigFile) -> Iterator[Hit]:
    """One of train_batch_size and train_micro_batch_size_per_gpu must be stated.

    DeepSpeed makes the third of batch, micro-batch and accumulation from the other two; from accumulation
    alone no batch follows, and it stops. Elastic training states them in its own table.
    """
    if file.get(_BATCH) is None and file.get(_MICRO) is None and not file.is_on("elasticity.enabled"):
        yield Hit(
            message=f"neither {_BATCH} nor {_MICRO}",
            fix=f'add "{_MICRO}", the samples that fit one GPU',
        )


@file_rule(
    "PS633",
    Severity.INFO,
    _FORMAT,
    source="https://huggingface.co/docs/transformers/deepspeed",
    covers=("PIT304",),
)
def auto_is_filled_in_by_somebody(file: ConfigFile) -> Iterator[Hit]:
    """The value auto is of transformers and accelerate, not of DeepSpeed.

    Their integration puts the trainer's own values in its place. `deepspeed.initialize` in a plain script
    takes it for a value, and fails or worse.
    """
    found = list(autos(file.table))
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield Hit(
            message=f'{found[0]}{more} "auto": only transformers or accelerate fill it in',
            fix="write numbers where the script calls deepspeed.initialize itself",
            key=found[0],
        )


def autos(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys whose value is auto."""
    for name, value in table.items():
        if value == "auto":
            yield f"{prefix}{name}"
        elif isinstance(value, dict):
            yield from autos(value, f"{prefix}{name}.")


def _device(file: ConfigFile, section: str) -> str | None:
    """Return where a section offloads to; None for nowhere."""
    device = file.get(f"{_ZERO}.{section}.device")
    return device if isinstance(device, str) and device != "none" else None


@file_rule("PS634", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/zero/config.py", covers=("PIT408",))
def parameters_are_offloaded_at_stage_3(file: ConfigFile) -> Iterator[Hit]:
    """Only stage 3 can offload parameters.

    Stages 1 and 2 keep all parameters on every GPU; the setting is passed over, and memory runs out.
    """
    stage, device = file.number(f"{_ZERO}.stage") or 0, _device(file, "offload_param")
    if device is not None and stage < 3:
        yield Hit(
            message=f"offload_param to {device} at stage {stage}",
            fix='write "stage": 3, or offload the optimizer with offload_optimizer',
            key=f"{_ZERO}.offload_param",
        )


@file_rule("PS635", Severity.ERROR, _FORMAT, source=_DOCS)
def optimizer_is_offloaded_where_it_is_split(file: ConfigFile) -> Iterator[Hit]:
    """Offloading the optimizer needs ZeRO: stage 1, 2 or 3.

    ZeRO-Offload updates each rank's own partition of the optimizer on the host. Without partitions the
    setting is passed over, and the states stay on the GPU.
    """
    stage, device = file.number(f"{_ZERO}.stage") or 0, _device(file, "offload_optimizer")
    if device is not None and stage < 1:
        yield Hit(
            message=f"offload_optimizer to {device} at stage {stage}",
            fix='write "stage": 2',
            key=f"{_ZERO}.offload_optimizer",
        )


@file_rule("PS636", Severity.WARNING, _FORMAT, source=f"{_SOURCE}/zero/config.py")
def keys_of_today(file: ConfigFile) -> Iterator[Hit]:
    """Old keys of ZeRO have new names.

    The old ones are deprecated. A newer DeepSpeed may no longer know them, and then refuses the whole
    section.
    """
    for name, fix in _OLD.items():
        if file.get(f"{_ZERO}.{name}") is not None:
            yield Hit(message=f"{name} is deprecated", fix=fix, key=f"{_ZERO}.{name}")


@file_rule("PS637", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/zero/offload_config.py")
def nvme_has_a_path(file: ConfigFile) -> Iterator[Hit]:
    """Offloading to NVMe needs the folder.

    DeepSpeed has no default for it, and a network file system in its place is slower than no offloading at
    all.
    """
    for section in ("offload_optimizer", "offload_param"):
        if _device(file, section) == "nvme" and not file.get(f"{_ZERO}.{section}.nvme_path"):
            yield Hit(
                message=f"{section} to nvme without nvme_path",
                fix='add "nvme_path": "/local_nvme", a folder on a local disk',
                key=f"{_ZERO}.{section}",
            )


@file_rule("PS638", Severity.ERROR, _FORMAT, source=f"{_SOURCE}/pipe/engine.py", covers=("PIT406",))
def pipelines_keep_gradients(file: ConfigFile) -> Iterator[Hit]:
    """A DeepSpeed pipeline works with ZeRO-1 at most.

    Stages 2 and 3 reduce gradients during backward; a pipeline needs them whole until its last micro-batch.
    """
    stages, zero = file.number("pipeline.stages") or 1, file.number(f"{_ZERO}.stage") or 0
    if stages > 1 and zero > 1:
        yield Hit(
            message=f"{stages} pipeline stages with ZeRO stage {zero}",
            fix='write "stage": 1',
            key=f"{_ZERO}.stage",
        )


@file_rule("PS639", Severity.ERROR, _FORMAT, source="https://www.deepspeed.ai/tutorials/zeropp/")
def weights_are_partitioned_twice_at_stage_3(file: ConfigFile) -> Iterator[Hit]:
    """ZeRO++'s secondary partition is of stage 3.

    zero_hpz_partition_size keeps a second copy of the weights' shards inside a node, so that backward
    gathers over fast links. Without shards there is none.
    """
    ranks, stage = file.number(f"{_ZERO}.zero_hpz_partition_size") or 1, file.number(f"{_ZERO}.stage") or 0
    if ranks > 1 and stage != 3:
        yield Hit(
            message=f"zero_hpz_partition_size {ranks} at stage {stage}",
            fix='write "stage": 3',
            key=f"{_ZERO}.zero_hpz_partition_size",
        )


@file_rule(
    "PS640",
    Severity.WARNING,
    _FORMAT,
    source="https://deepspeed.readthedocs.io/en/latest/activation-checkpointing.html",
)
def checkpoints_on_the_host_are_partitioned(file: ConfigFile) -> Iterator[Hit]:
    """cpu_checkpointing works on partitioned activations alone.

    DeepSpeed moves the partitions to the host, and knows no other way. Without partition_activations the
    checkpoints stay on the GPU.
    """
    section = "activation_checkpointing"
    if file.is_on(f"{section}.cpu_checkpointing") and not file.is_on(f"{section}.partition_activations"):
        yield Hit(
            message="cpu_checkpointing without partition_activations",
            fix='write "partition_activations": true',
            key=f"{section}.cpu_checkpointing",
        )
