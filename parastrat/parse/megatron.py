"""What Megatron-LM is told behind a launcher: its options, and what they say of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parastrat.config_file import FILLED_IN, whole_number
from parastrat.parse.formats import NOUNS, READ_BY
from parastrat.parse.problems import Problem
from parastrat.plan import Compile, ContextMethod, Mesh, Offload, PipelineSchedule, Recompute, Shard
from parastrat.rules.launch_facts import count_of, world_of
from parastrat.rules.megatron import EXPERTS, OPTIONS
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

Options = Mapping[str, str]

#: of which one is enough to tell a script of Megatron-LM's
_SIGNS = (OPTIONS["tp"], OPTIONS["pp"])
#: a fork with an engine of its own, which reads more from a file
_FORK = ("deepspeed", "deepspeed_config", "zero-stage")
#: stands for sizes that a checkpoint tells, with tools that evaluate it
_LAYERS, _PLACEHOLDER = "num-layers", "-1"
#: what no plan has a word for: other cuts, parts, states and memory
_BEYOND = frozenset(
    {
        "account-for-embedding-in-pipeline-split",
        "account-for-loss-in-pipeline-split",
        "cpu-offloading",
        "cpu-offloading-num-layers",
        "decoder-first-pipeline-num-layers",
        "decoder-last-pipeline-num-layers",
        "exp-avg-dtype",
        "exp-avg-sq-dtype",
        "fine-grained-activation-offloading",
        "fp8-param-gather",
        "hierarchical-context-parallel-sizes",
        "main-grads-dtype",
        "main-params-dtype",
        "moe-layer-recompute",
        "optimizer-cpu-offload",
        "pipeline-model-parallel-layout",
        "tensor-parallel-num-weight-shards",
        "expert-tensor-parallel-num-weight-shards",
        "use-precision-aware-optimizer",
    }
)
_SHARDS = {
    "no_shard": Shard.NONE,
    "optim": Shard.OPTIMIZER,
    "optim_grads": Shard.GRADIENTS,
    "optim_grads_params": Shard.PARAMETERS,
}
_METHODS = {"p2p": ContextMethod.RING, "all_gather": ContextMethod.ALL_GATHER}
#: layers of a virtual stage
_CHUNK = "num-layers-per-virtual-pipeline-stage"
_AXES = {**OPTIONS, "ep": EXPERTS}
#: of what there is one at least; argparse reads any number
_COUNTS = frozenset(
    {
        *_AXES.values(),
        "global-batch-size",
        "hidden-size",
        "micro-batch-size",
        "num-attention-heads",
        "num-layers",
        "seq-length",
    }
)


def megatron_options(own: Mapping[str, Any], kinds: Mapping[str, str]) -> Options | None:
    """Return Megatron-LM's options by their names, with their values as text; a switch's is empty.

    None where a program is not Megatron's, or takes the model's sizes of a checkpoint, or where a variable
    may stand for more options.

    Args:
        own: ``program``, ``options`` and ``words`` of a launch, as ``script_tables`` gives them.
        kinds: of each option that Megatron-LM has; ``bool`` takes no value, ``list`` several.
    """
    stated, words = own.get("options", {}), own.get("words", ())
    if not any(name in stated for name in _SIGNS) or any(name in stated for name in _FORK):
        return None
    found: dict[str, str] = {}
    name, room = "", 0
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            kind = kinds.get(name, "bool")
            room = 0 if kind == "bool" or equals else len(words) if kind == "list" else 1
            found[name] = value
        elif room:
            room -= 1
            found[name] = f"{found[name]} {word}".strip()
        elif word.startswith(("$", "`")):
            return None
    return None if found.get(_LAYERS) == _PLACEHOLDER else found


def megatron_problems(options: Options, kinds: Mapping[str, str]) -> Iterator[Problem]:
    """Yield options whose values Megatron-LM cannot read, or counts below the one that they must be.

    Args:
        options: as ``megatron_options`` returns them.
        kinds: of each option that Megatron-LM has; ``int`` and ``number`` are read as such.
    """
    for name, value in options.items():
        kind = kinds.get(name, "")
        if kind not in READ_BY or FILLED_IN.search(value):
            continue
        try:
            number = READ_BY[kind](value)
        except ValueError:
            number = None
        counts = name in _COUNTS
        if number is None or (counts and number < 1):
            noun = NOUNS["positive" if counts else kind]
            text = f"must be {noun}, not {value}" if value else "has no value"
            yield Problem(key="own", name=f"--{name}", text=text, hint=f"write {noun}")


def number_of(options: Options, name: str, default: int | None = None) -> int | None:
    """Return an option's whole number; the default where it is not stated, None where it is none."""
    return whole_number(options[name]) if name in options else default


def megatron_mesh(file: ConfigFile) -> Mesh | None:
    """Return the mesh of a launch; None where a degree or the number of processes is unknown."""
    options: Options = file.get("megatron") or {}
    degrees = {axis: number_of(options, name, 1) for axis, name in _AXES.items()}
    known = {axis: degree for axis, degree in degrees.items() if degree}
    world = world_of(file) or _told_world(file) or file.devices
    if len(known) < len(degrees) or world is None:
        return None
    replica = known["tp"] * known["pp"] * known["cp"]
    if world % replica:
        return None
    # experts are divided by tp as well unless they are told otherwise, which no plan does with ep
    own_tp = number_of(options, "expert-tensor-parallel-size", known["tp"])
    if known["ep"] > 1 and own_tp != 1:
        return None
    ranks = world // replica
    shards = _shard(options) not in (None, Shard.NONE)
    return Mesh(**known, dp_shard=ranks if shards else 1, dp_replicate=1 if shards else ranks)


def _told_world(file: ConfigFile) -> int | None:
    """Return the processes that torchrun is told of by variables, as in a TrainJob's pods."""
    nodes, processes = (count_of(file, f"env.PET_{name}") for name in ("NNODES", "NPROC_PER_NODE"))
    return None if nodes is None or processes is None else nodes * processes


def _shard(options: Options) -> Shard | None:
    if "use-torch-fsdp2" in options:
        return Shard.PARAMETERS
    if "use-megatron-fsdp" in options or "use-custom-fsdp" in options:
        return _SHARDS.get(options.get("data-parallel-sharding-strategy", "optim_grads_params"))
    return Shard.OPTIMIZER if "use-distributed-optimizer" in options else Shard.NONE


def megatron_fields(file: ConfigFile) -> dict[str, Any]:
    """Return the fields of ``Plan``; None for those that are open, or that no plan has a word for."""
    options, mesh = file.get("megatron"), megatron_mesh(file)
    if options is None:
        return {}
    beyond = not _BEYOND.isdisjoint(options)
    micro = number_of(options, "micro-batch-size")
    shard = _shard(options)
    return {
        "mesh": mesh,
        "micro_batch_size": None if beyond else micro,
        "gradient_accumulation_steps": _steps(options, mesh, micro),
        "precision": _precision(options),
        "shard": shard,
        "reshard_after_forward": shard is Shard.PARAMETERS,
        "sequence_parallel": None if mesh is None else mesh.tp > 1 and "sequence-parallel" in options,
        "loss_parallel": None if mesh is None else mesh.tp > 1,
        "cp_method": _METHODS.get(options.get("cp-comm-type", "p2p")),
        "recompute": _recompute(options),
        "offload": Offload.NONE,
        "compile": Compile.NONE,
        **_pipeline(options, mesh),
    }


def megatron_workload(file: ConfigFile) -> dict[str, Any]:
    """Return the fields of ``Workload`` that are stated, or that Megatron-LM fills in."""
    options: Options = file.get("megatron") or {}
    if not options:
        return {}
    mesh, micro = megatron_mesh(file), number_of(options, "micro-batch-size")
    usual = None if mesh is None or micro is None else micro * mesh.dp
    adam = options.get("optimizer", "adam") == "adam"
    return {
        "global_batch_size": number_of(options, "global-batch-size", usual),
        "sequence_length": number_of(options, "seq-length"),
        "optimizer": Optimizer.ADAMW if adam else None,
    }


def megatron_sizes(file: ConfigFile) -> dict[str, int]:
    """Return the sizes of a model that are stated, by their names in ``ModelSpec``."""
    options: Options = file.get("megatron") or {}
    names = {"layers": "num-layers", "hidden": "hidden-size", "heads": "num-attention-heads"}
    stated = {field: number_of(options, name) for field, name in names.items()}
    return {field: number for field, number in stated.items() if number}


def _steps(options: Options, mesh: Mesh | None, micro: int | None) -> int | None:
    if mesh is None or not micro:
        return None
    batch = number_of(options, "global-batch-size", micro * mesh.dp)
    return batch // (micro * mesh.dp) if batch and batch % (micro * mesh.dp) == 0 else None


def _precision(options: Options) -> Precision | None:
    if any(name in options for name in ("fp4-format", "fp4")):
        return None
    if any(name in options for name in ("fp8-format", "fp8-hybrid", "fp8-e4m3", "fp8")):
        return Precision.FP8
    if "bf16" in options:
        return Precision.BF16_MIXED
    return Precision.FP16_MIXED if "fp16" in options else Precision.FP32


def _recompute(options: Options) -> Recompute | None:
    granularity = options.get("recompute-granularity")
    if granularity is None:
        return Recompute.ATTENTION if "recompute-activations" in options else Recompute.NONE
    if granularity == "selective":
        return Recompute.ATTENTION if options.get("recompute-modules", "core_attn") == "core_attn" else None
    method, layers = options.get("recompute-method"), number_of(options, "recompute-num-layers")
    # several layers in one, or some layers alone, are no policy of a plan
    return Recompute.FULL if granularity == "full" and method == "uniform" and layers == 1 else None


def _pipeline(options: Options, mesh: Mesh | None) -> dict[str, Any]:
    if mesh is None or mesh.pp == 1:
        return {}
    virtual = number_of(options, "num-virtual-stages-per-pipeline-rank", 1)
    if _CHUNK in options:
        layers, chunk = number_of(options, "num-layers"), number_of(options, _CHUNK)
        stages = mesh.pp * chunk if chunk else 0
        virtual = layers // stages if layers and stages and layers % stages == 0 else None
    schedule = PipelineSchedule.INTERLEAVED if virtual and virtual > 1 else PipelineSchedule.ONE_F_ONE_B
    return {"pp_schedule": schedule, "virtual_stages": virtual}
