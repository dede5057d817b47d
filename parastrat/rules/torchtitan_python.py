"""PS553 to PS559: what torchtitan's releases that take Python refuse at their start, or pass over."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule
from parastrat.rules.torchtitan import long_warmup, not_of_the_devices
from parastrat.rules.torchtitan_facts import DEGREES, degree, mesh_of
from parastrat.rules.torchtitan_python_facts import (
    LENGTH,
    MICRO_BATCHES,
    MICRO_TOKENS,
    POLICY,
    STEP_TOKENS,
    compiles_model,
    has_experts,
    known_degrees,
    micro_batches,
    micro_tokens,
    switch,
    waits_for_the_host,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_CODE = "https://github.com/pytorch/torchtitan/blob/b5bcd76c6/torchtitan"
_NEW = ConfigFormat.TORCHTITAN_PYTHON
_GRAPHS = "training.disable_cuda_graphs"
_PARTS = "parallelism.module_fqns_per_model_part"
_SCHEDULE = "parallelism.pipeline_parallel_schedule"
#: two stages on each rank, one from either end
_V_SHAPED = ("zbvzerobubble", "dualpipev")


@file_rule(
    "PS553",
    Severity.ERROR,
    _NEW,
    source=f"{_CODE}/distributed/parallel_dims.py#L166",
    covers=("PIT101", "PIT108"),
)
def degrees_of_python_make_a_mesh(file: ConfigFile) -> Iterator[Hit]:
    """The degrees of torchtitan's ParallelismConfig are counts, shards may be -1, and experts divide.

    Shards are a number of ranks, or -1 for all that the other degrees leave; the other degrees are 1 or
    more. Expert parallelism takes its ranks from data shards, context and tensor parallelism, so that its
    degree divides their product.
    """
    for axis, key in DEGREES.items():
        if file.number(key) is not None and degree(file, axis) is None:
            whole = "-1 for all ranks that the other degrees leave, or a number from 1 on"
            yield Hit(
                message=f"{key} is {file.number(key)}",
                fix=f"write {whole if axis == 'dp_shard' else 'a number from 1 on'}",
                key=key,
            )
    yield from not_of_the_devices(file)
    mesh = mesh_of(file)
    degrees = known_degrees(file) if mesh is None else {axis: getattr(mesh, axis) for axis in DEGREES}
    if not {"dp_shard", "cp", "tp", "ep"} <= degrees.keys():
        return
    borrowed, experts = degrees["dp_shard"] * degrees["cp"] * degrees["tp"], degrees["ep"]
    if borrowed % experts:
        yield Hit(
            message=f"{experts} expert-parallel ranks do not divide dp_shard x cp x tp = {borrowed}",
            fix=f"write expert_parallel_degree with a divisor of {borrowed}",
            key=DEGREES["ep"],
        )


@file_rule("PS554", Severity.ERROR, _NEW, source=f"{_CODE}/trainer.py#L295")
def tokens_come_out_even(file: ConfigFile) -> Iterator[Hit]:
    """Torchtitan's tokens of a micro-batch divide over tp x 2 cp, those of a step over all micro-batches.

    A micro-batch is a number of tokens for each data-parallel rank. Sequence parallelism gives each
    tensor-parallel rank a part of them, context parallelism two parts to each of its ranks. A step takes
    whole rounds: micro-batch x micro-batches of a pipeline x data-parallel ranks. Torchtitan stops where
    anything is left.
    """
    yield from _not_positive(file)
    tokens, degrees = micro_tokens(file), known_degrees(file)
    if tokens is None:
        return
    # what is not known multiplies: what does not divide by a part of it does not divide by all
    divides = switch(file, "parallelism.enable_sequence_parallel", default=True)
    tp = degrees.get("tp", 1) if divides else 1
    cp = degrees.get("cp", 1)
    parts = tp * (2 * cp if cp > 1 else 1)
    if tokens % parts:
        of = " x ".join([f"tp {tp}"] * (tp > 1) + [f"2 x cp {cp}"] * (cp > 1))
        yield Hit(
            message=f"{tokens} tokens of a micro-batch are no multiple of {of} = {parts}",
            fix=f"write a multiple of {parts}: {-(-tokens // parts) * parts}",
            key=MICRO_TOKENS if file.get(MICRO_TOKENS) is not None else DEGREES["tp" if cp == 1 else "cp"],
        )
    whole, mesh = file.number(STEP_TOKENS), mesh_of(file)
    if whole is None or whole < 1:
        return
    ranks = (
        mesh.dp if mesh is not None else prod(degrees.get(axis, 1) for axis in ("dp_replicate", "dp_shard"))
    )
    count = micro_batches(file) or 1
    if whole % (tokens * count * ranks):
        factors = [f"{tokens} tokens"]
        factors += [f"{count} micro-batches of the pipeline"] * (count > 1)
        factors += [f"{ranks} data-parallel ranks"] * (ranks > 1)
        yield Hit(
            message=f"{whole} tokens of a step are no multiple of {' x '.join(factors)}",
            fix=f"write a multiple of {tokens * count * ranks}, or -1 for one round",
            key=STEP_TOKENS,
        )


def _not_positive(file: ConfigFile) -> Iterator[Hit]:
    for key in (MICRO_TOKENS, LENGTH, MICRO_BATCHES):
        number = file.number(key)
        if number is not None and number < 1:
            yield Hit(message=f"{key} is {number}", fix="write a number from 1 on", key=key)
    whole = file.number(STEP_TOKENS)
    if whole is not None and whole < 1 and whole != -1:
        yield Hit(
            message=f"{STEP_TOKENS} is {whole}", fix="write -1 for one round of all ranks", key=STEP_TOKENS
        )


@file_rule("PS555", Severity.ERROR, _NEW, source=f"{_CODE}/trainer.py#L168")
def graphs_of_what_they_capture(file: ConfigFile) -> Iterator[Hit]:
    """Torchtitan's CUDA graphs know no pipelines, and no exchange of tokens that waits for the host.

    They are on unless training.disable_cuda_graphs is set. A pipeline's schedule is not captured, and the
    usual exchange between expert-parallel ranks asks the CPU how many tokens come. Torchtitan stops at
    both, when it makes the configuration.
    """
    if switch(file, _GRAPHS, default=False) is not False:
        return
    if (degree(file, "pp") or 1) > 1:
        yield Hit(
            message="CUDA graphs are on, and they know no pipelines",
            fix="write disable_cuda_graphs=True in TrainingConfig",
            key=DEGREES["pp"],
        )
    if (degree(file, "ep") or 1) > 1 and has_experts(file) and waits_for_the_host(file):
        backend = word(file, "model_spec.moe_comm_backend", "standard")
        yield Hit(
            message=f"CUDA graphs are on, and the {backend} exchange of experts' tokens waits for the host",
            fix="write disable_cuda_graphs=True in TrainingConfig",
            key=DEGREES["ep"],
        )


@file_rule("PS556", Severity.ERROR, _NEW, source=f"{_CODE}/trainer.py#L118")
def no_combination_of_python_that_is_refused(file: ConfigFile) -> Iterator[Hit]:
    """The settings of torchtitan's Python configurations are ones that work together.

    Asynchronous tensor parallelism and a memory budget need a compiled model, context parallelism needs
    the spmd_types backend, type checks know no pipelines, and pretraining has no batch-invariant mode.
    """
    compiled = compiles_model(file)
    needs = {
        "compile.enable_async_tensor_parallel": file.is_on("compile.enable_async_tensor_parallel"),
        POLICY: file.get(POLICY) == "MemoryBudgetAC.Config",
    }
    words = {POLICY: "a memory budget", "compile.enable_async_tensor_parallel": "asynchronous tp"}
    for key, is_set in needs.items():
        if is_set and compiled is False:
            yield Hit(
                message=f"{words[key]} needs a compiled model",
                fix='write compile=CompileConfig(enable=True), with "model" among its components',
                key=key,
            )
    backend = word(file, "parallelism.spmd_backend", "spmd_types")
    if (degree(file, "cp") or 1) > 1 and backend == "partial_dtensor":
        yield Hit(
            message="context parallelism needs the spmd_types backend",
            fix='write spmd_backend="spmd_types" in ParallelismConfig',
            key="parallelism.spmd_backend",
        )
    if file.is_on("debug.spmd_typechecking") and backend == "spmd_types" and (degree(file, "pp") or 1) > 1:
        yield Hit(
            message="type checks of spmd_types know no pipelines",
            fix="write spmd_typechecking=False, or check without a pipeline",
            key="debug.spmd_typechecking",
        )
    if file.is_on("debug.batch_invariant"):
        yield Hit(
            message="pretraining has no batch-invariant mode",
            fix="write batch_invariant=False in DebugConfig",
            key="debug.batch_invariant",
        )


@file_rule("PS557", Severity.ERROR, _NEW, source=f"{_CODE}/distributed/pipeline_parallel.py#L512")
def stages_of_python_fit_the_pipeline(file: ConfigFile) -> Iterator[Hit]:
    """The parts that module_fqns_per_model_part names are as many on each rank of torchtitan's pipeline.

    V-shaped schedules take two on each. PipelineScheduleSingle is a base of schedules and none itself.
    """
    pp, parts = degree(file, "pp"), file.get(_PARTS)
    if pp is None or pp == 1:
        return
    schedule = (word(file, _SCHEDULE, "1F1B") or "").lower()
    if schedule == "pipelineschedulesingle" and file.get(f"{_SCHEDULE}_csv") in (None, ""):
        yield Hit(
            message="PipelineScheduleSingle is the base of schedules, and none itself",
            fix='write "1F1B" or "GPipe"',
            key=_SCHEDULE,
        )
    if not isinstance(parts, list):
        return
    if len(parts) % pp:
        yield Hit(
            message=f"{len(parts)} parts of the model do not divide over {pp} pipeline ranks",
            fix=f"name a multiple of {pp} parts",
            key=_PARTS,
        )
    elif schedule in _V_SHAPED and len(parts) != 2 * pp:
        yield Hit(
            message=f"{len(parts)} parts of the model are not 2 on each of {pp} pipeline ranks",
            fix=f"name {2 * pp} parts, or another schedule",
            key=_PARTS,
        )


@file_rule("PS558", Severity.ERROR, _NEW, source=f"{_CODE}/components/checkpointer/base.py#L327")
def checkpoints_of_python_can_be_kept(file: ConfigFile) -> Iterator[Hit]:
    """What torchtitan's CheckpointManager is told goes together.

    It looks at it when the configuration is made: one checkpoint that is kept may be the one that is being
    written, files of Hugging Face hold a model alone, and a first checkpoint is named by a whole path.
    """
    interval, kept = file.number("checkpoint.interval"), file.number("checkpoint.keep_latest_k")
    if interval is not None and interval < 1:
        yield Hit(
            message=f"checkpoint.interval is {interval}", fix="write 1 or more", key="checkpoint.interval"
        )
    if kept is not None and (kept == 1 or kept < 0):
        yield Hit(
            message=f"checkpoint.keep_latest_k is {kept}: one may be the one that is being written",
            fix="write keep_latest_k=2 or more, or 0 for all",
            key="checkpoint.keep_latest_k",
        )
    for first, second in (
        ("last_save_in_hf", "last_save_model_only"),
        ("initial_load_in_hf", "initial_load_model_only"),
    ):
        if file.is_on(f"checkpoint.{first}") and file.get(f"checkpoint.{second}") is False:
            yield Hit(
                message=f"{first} goes with {second} alone",
                fix=f"write {second}=True",
                key=f"checkpoint.{first}",
            )
    path = file.get("checkpoint.initial_load_path")
    if isinstance(path, str) and path and not (path.startswith("/") or "://" in path):
        yield Hit(
            message=f'checkpoint.initial_load_path "{path}" is no whole path',
            fix="write it from / on, or as a URI",
            key="checkpoint.initial_load_path",
        )


@file_rule("PS559", Severity.WARNING, _NEW, source=f"{_CODE}/config/configs.py#L226")
def no_setting_of_python_without_effect(file: ConfigFile) -> Iterator[Hit]:
    """A setting of torchtitan's Python configurations has the effect that its name says.

    Without a pipeline nothing reads num_pp_microbatches: accumulation is what num_tokens_per_train_step
    leaves of a round. A warm-up that is longer than the training is cut.
    """
    count = file.number(MICRO_BATCHES)
    if degree(file, "pp") == 1 and count is not None and count > 1:
        yield Hit(
            message=f"num_pp_microbatches {count} has no effect without a pipeline",
            fix="accumulate by num_tokens_per_train_step, or write pipeline_parallel_degree",
            key=MICRO_BATCHES,
        )
    yield from long_warmup(file)
