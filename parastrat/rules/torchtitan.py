"""PS689 to PS694: what torchtitan's releases that read TOML refuse at their start, or pass over."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule
from parastrat.rules.torchtitan_facts import (
    DEGREES,
    LENGTH,
    LOCAL_BATCH,
    PIPELINE_MICRO_BATCH,
    compiles,
    degree,
    mesh_of,
    no_mixed_precision,
    number_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_CODE = "https://github.com/pytorch/torchtitan/blob/v0.2.2/torchtitan"
_PARALLEL = "parallelism"
_FP8 = "quantize.linear.float8"


@file_rule(
    "PS689",
    Severity.INFO,
    ConfigFormat.TORCHTITAN,
    source="https://github.com/pytorch/torchtitan/pull/2386",
    covers=("PIT523",),
)
def toml_is_read_up_to_0_2_2(file: ConfigFile) -> Iterator[Hit]:
    """Releases of torchtitan after 0.2.2 read no TOML.

    Since February 2026 its configurations are Python functions, named by --module and --config. A TOML file
    goes with a torchtitan of up to 0.2.2, which has to be pinned.
    """
    if file.table:
        yield Hit(
            message="torchtitan reads TOML up to release 0.2.2; later ones take Python configurations",
            fix="pin torchtitan==0.2.2, or make one with: parastrat emit plan.toml --to torchtitan",
            key=next(iter(file.table)),
        )


@file_rule(
    "PS690",
    Severity.ERROR,
    ConfigFormat.TORCHTITAN,
    source=f"{_CODE}/distributed/parallel_dims.py",
    covers=("PIT101", "PIT108"),
)
def degrees_are_of_a_mesh(file: ConfigFile) -> Iterator[Hit]:
    """Torchtitan's degrees make a mesh: data shards are -1 or a count, experts divide what they borrow.

    The shard degree is a number of ranks, or -1 for all that the other degrees leave. Expert parallelism
    takes its ranks from data shards, context and tensor parallelism; its own tensor parallelism is that of
    the other layers, or none.
    """
    shard = DEGREES["dp_shard"]
    if file.number(shard) is not None and degree(file, "dp_shard") is None:
        yield Hit(
            message=f"{shard} is {file.number(shard)}",
            fix="write -1 for all ranks that the other degrees leave, or a number from 1 on",
            key=shard,
        )
    yield from not_of_the_devices(file)
    experts, own = file.number(DEGREES["ep"]) or 1, f"{_PARALLEL}.expert_tensor_parallel_degree"
    tp, etp = degree(file, "tp"), file.number(own) or 1
    if experts > 1 and tp is not None and etp not in (1, tp):
        yield Hit(
            message=f"{own} is {etp}: it can be 1, or {tp} as the tensor degree",
            fix=f"write {own.rpartition('.')[2]} = {tp} or 1",
            key=own,
        )
    mesh = mesh_of(file)
    if mesh is not None and experts > 1:
        borrowed = mesh.dp_shard * mesh.cp * (mesh.tp if etp == 1 else 1)
        if borrowed % experts:
            factors = "dp_shard x cp x tp" if etp == 1 else "dp_shard x cp"
            yield Hit(
                message=f"{experts} expert-parallel ranks do not divide {factors} = {borrowed}",
                fix=f"write {DEGREES['ep'].rpartition('.')[2]} with a divisor of {borrowed}",
                key=DEGREES["ep"],
            )


def not_of_the_devices(file: ConfigFile) -> Iterator[Hit]:
    """Yield where shards cannot fill the devices; of a mesh that is stated whole PS200 tells it."""
    degrees = {axis: degree(file, axis) for axis in DEGREES if axis != "ep"}
    if file.devices is None or None in degrees.values() or degrees["dp_shard"] != -1:
        return
    product = abs(prod(number for number in degrees.values() if number))
    if file.devices % product:
        factors = " x ".join(
            f"{axis} {number}" for axis, number in degrees.items() if number and number > 1
        )
        yield Hit(
            message=f"{factors} is {product} ranks, no divisor of the {file.devices} devices",
            fix="change a degree, or start a multiple of their product",
            key=DEGREES["dp_shard"] if DEGREES["dp_shard"] in file.positions else _PARALLEL,
        )


@file_rule("PS691", Severity.ERROR, ConfigFormat.TORCHTITAN, source=f"{_CODE}/train.py#L170")
def batches_come_out_even(file: ConfigFile) -> Iterator[Hit]:
    """Torchtitan's global batch is a multiple of all local ones, a local one of the pipeline's micro-batch.

    A local batch is what one data-parallel rank takes at once; what is more is accumulated. A pipeline cuts
    it into micro-batches. Torchtitan stops where either leaves a rest.
    """
    local, mesh = number_of(file, "training.local_batch_size", LOCAL_BATCH), mesh_of(file)
    batch, whole = file.number("training.global_batch_size"), "training.global_batch_size"
    if batch == 0:
        yield Hit(message=f"{whole} is 0", fix="write -1 for one local batch of each rank", key=whole)
    if local is None:
        return
    if batch is not None and batch > 0:
        ranks = 1 if mesh is None else mesh.dp
        if batch % (local * ranks):
            of_ranks = f" x {ranks} data-parallel ranks" if mesh is not None else ""
            yield Hit(
                message=f"{whole} {batch} is no multiple of the local batch {local}{of_ranks}",
                fix=f"write a multiple of {local * ranks}, or -1",
                key=whole,
            )
    micro = number_of(file, f"{_PARALLEL}.pipeline_parallel_microbatch_size", PIPELINE_MICRO_BATCH)
    if (degree(file, "pp") or 1) > 1 and micro is not None and local % micro:
        yield Hit(
            message=f"the local batch {local} is no multiple of the pipeline's micro-batch {micro}",
            fix=f"write pipeline_parallel_microbatch_size with a divisor of {local}",
            key=f"{_PARALLEL}.pipeline_parallel_microbatch_size",
        )


@file_rule(
    "PS692",
    Severity.ERROR,
    ConfigFormat.TORCHTITAN,
    source=f"{_CODE}/models/llama3/infra/parallelize.py#L64",
)
def sequences_divide_by_tensor_and_context_ranks(file: ConfigFile) -> Iterator[Hit]:
    """Torchtitan's sequence length is a multiple of tp x 2 cp.

    Sequence parallelism gives each tensor-parallel rank a part of the tokens, and balanced context
    parallelism two parts to each of its ranks. Its models assert that nothing is left.
    """
    length = number_of(file, "training.seq_len", LENGTH)
    tp, cp = degree(file, "tp"), degree(file, "cp")
    if length is None or tp is None or cp is None:
        return
    # as ParallelDims has it: twice the context degree, one or more
    divisor = tp * 2 * cp
    if length % divisor:
        yield Hit(
            message=f"{length} tokens are no multiple of tp {tp} x 2 x cp {cp} = {divisor}",
            fix=f"write seq_len = {-(-length // divisor) * divisor}",
            key="training.seq_len" if file.get("training.seq_len") is not None else DEGREES["tp"],
        )


@file_rule("PS693", Severity.ERROR, ConfigFormat.TORCHTITAN, source=_CODE)
def no_combination_that_is_refused(file: ConfigFile) -> Iterator[Hit]:
    """Torchtitan's settings are ones that work together.

    It looks at some combinations when every rank has started and has the model: replicas alone beside
    another axis (DDP knows none), asynchronous tensor parallelism or a memory budget without a compiled
    model, an optimizer within backward under pipelines or experts, one checkpoint that is kept, pipelines
    of models that have none. By then the job has waited in its queue.
    """
    mesh = mesh_of(file)
    if mesh is not None and mesh.dp_replicate > 1 and mesh.dp_shard * mesh.cp == 1:
        others = [axis for axis in ("pp", "tp") if getattr(mesh, axis) > 1]
        if others:
            yield Hit(
                message=f"replicas without shards are DDP, which torchtitan does not join with {others[0]}",
                fix="shard too: data_parallel_shard_degree = -1, or above 1",
                key=DEGREES["dp_replicate"],
            )
    if (degree(file, "tp") or 1) > 1 and file.is_on(f"{_PARALLEL}.enable_async_tensor_parallel"):
        yield from _uncompiled(file, f"{_PARALLEL}.enable_async_tensor_parallel", "asynchronous tp")
    if file.get("activation_checkpoint.mode") == "memory_budget":
        yield from _uncompiled(file, "activation_checkpoint.mode", "a memory budget")
    in_backward = "optimizer.early_step_in_backward"
    for axis, name in (("pp", "pipelines"), ("ep", "expert parallelism")):
        if file.is_on(in_backward) and (degree(file, axis) or 1) > 1:
            yield Hit(
                message=f"an optimizer within backward knows no {name}",
                fix="write early_step_in_backward = false",
                key=in_backward,
            )
    kept = "checkpoint.keep_latest_k"
    if file.is_on("checkpoint.enable") and file.number(kept) == 1:
        yield Hit(
            message="one checkpoint that is kept may be the one that is being written",
            fix="write keep_latest_k = 2 or more, or 0 for all",
            key=kept,
        )
    yield from _of_models(file)


def _of_models(file: ConfigFile) -> Iterator[Hit]:
    """Yield what the models' own code refuses."""
    option, mode = "activation_checkpoint.selective_ac_option", file.get("activation_checkpoint.mode")
    stated = file.get(option)
    if mode in (None, "selective") and isinstance(stated, str) and stated != "op" and not stated.isdigit():
        yield Hit(
            message=f'{option} is "{stated}"',
            fix='write "op", or a number of blocks in quotes: "2"',
            key=option,
        )
    name = str(file.get("model.name") or "llama3")
    if (degree(file, "pp") or 1) > 1 and name in ("qwen3", "gpt_oss", "flux"):
        yield Hit(
            message=f"{name} has no pipelines in torchtitan",
            fix=f"write {DEGREES['pp'].rpartition('.')[2]} = 1, and shard or tensor-parallel ranks instead",
            key=DEGREES["pp"],
        )
    assets = file.get("model.hf_assets_path")
    if isinstance(assets, str) and assets.endswith("tokenizer.model"):
        yield Hit(
            message="model.hf_assets_path names a tokenizer.model: it is the folder of all assets",
            fix='write the folder, such as "./assets/hf/Llama-3.1-8B"',
            key="model.hf_assets_path",
        )
    recipe, gathers = f"{_FP8}.recipe_name", f"{_FP8}.enable_fsdp_float8_all_gather"
    if "float8" in _converters(file) and file.get(recipe) is not None and file.is_on(gathers):
        yield Hit(
            message="fp8 all-gathers go with no recipe",
            fix="remove recipe_name, or write enable_fsdp_float8_all_gather = false",
            key=gathers,
        )


def _uncompiled(file: ConfigFile, key: str, what: str) -> Iterator[Hit]:
    if not compiles(file):
        yield Hit(
            message=f"{what} needs a compiled model",
            fix='write [compile] enable = true, with "model" among its components',
            key=key,
        )


def _converters(file: ConfigFile) -> list[str]:
    stated = file.get("model.converters")
    return [str(name) for name in stated] if isinstance(stated, list) else []


@file_rule("PS694", Severity.WARNING, ConfigFormat.TORCHTITAN, source=f"{_CODE}/distributed/utils.py#L243")
def no_setting_without_effect(file: ConfigFile) -> Iterator[Hit]:
    """A setting of torchtitan's has the effect that its name says.

    Some are passed over without a word, or with one in the log: numbers of fp8 without its converter,
    mixed precision under tensor or pipeline parallelism alone (it is FSDP's or DDP's), a warm-up that is
    longer than the training.
    """
    on = [key for key, value in (file.get(_FP8) or {}).items() if value is True]
    if on and "float8" not in _converters(file):
        yield Hit(
            message=f"{_FP8}.{on[0]} has no effect: float8 is not among model.converters",
            fix='write converters = ["float8"] under [model]',
            key=f"{_FP8}.{on[0]}",
        )
    mesh, kind = mesh_of(file), "training.mixed_precision_param"
    if (
        mesh is not None
        and no_mixed_precision(mesh)
        and mesh.dp_replicate == 1
        and file.get("training.dtype") != "bfloat16"
        and file.get(kind) != "float32"
    ):
        axes = " and ".join(axis for axis in ("tp", "pp") if getattr(mesh, axis) > 1)
        yield Hit(
            message=f"under {axes} alone nothing applies mixed precision: the model computes in fp32",
            fix='shard too, or write dtype = "bfloat16"',
            key=kind if file.get(kind) is not None else DEGREES["tp"],
        )
    yield from long_warmup(file)


def long_warmup(file: ConfigFile) -> Iterator[Hit]:
    """Yield a warm-up that is longer than the training, of whatever version's configuration."""
    whole = "lr_scheduler.total_steps"
    steps = file.number(whole) or number_of(file, "training.steps", 10_000)
    warmup = file.number("lr_scheduler.warmup_steps")
    if steps is not None and warmup is not None and warmup > steps and not file.is_open(whole):
        yield Hit(
            message=f"{warmup} steps of warm-up are more than the {steps} of the training",
            fix="write fewer",
            key="lr_scheduler.warmup_steps",
        )
