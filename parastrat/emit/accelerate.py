"""A plan as a configuration of Hugging Face accelerate, for its scripts and for transformers' Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from parastrat.emit.shell import (
    check_launch,
    meeting_check,
    run_call,
    run_usage,
    title,
    usage_check,
    variables,
)
from parastrat.emit.text_file import EmitError, TextFile
from parastrat.hardware import DeviceType
from parastrat.plan import Backend, Compile, ContextMethod, Offload, Recompute, Shard
from parastrat.rules.runtime_support import refusals_of
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.case import Case
    from parastrat.plan import Plan

_Table: TypeAlias = "dict[str, bool | int | str]"

#: accelerate's names for plain replicas, by torch's device type; it starts one process on CPUs
_REPLICAS = {
    DeviceType.CUDA: "MULTI_GPU",
    DeviceType.XPU: "MULTI_XPU",
    DeviceType.HPU: "MULTI_HPU",
    DeviceType.NPU: "MULTI_NPU",
}

_PRECISIONS = {
    Precision.FP32: "no",
    Precision.BF16: "no",
    Precision.BF16_MIXED: "bf16",
    Precision.FP16_MIXED: "fp16",
}

#: stages of DeepSpeed's ZeRO; the third is FSDP2 here
_STAGES = {Shard.OPTIMIZER: 1, Shard.GRADIENTS: 2}

#: what Trainer calls optimizers
_OPTIMIZERS = {
    Optimizer.ADAMW: "adamw_torch",
    Optimizer.SGD: "sgd",
    Optimizer.ADAFACTOR: "adafactor",
    Optimizer.ADAMW_8BIT: "adamw_8bit",
}

_CONFIG = """\
# {title}
# For accelerate launch --config_file, scripts of accelerate and of transformers' Trainer. A script sets
{script}
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
{processes}
main_training_function: main
mixed_precision: '{precision}'
{tables}"""

_SCRIPT = """\
#!/usr/bin/env bash
# {title}
# {usage}
set -euo pipefail

{check}
{variables}
{steps}
config="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)/accelerate.yaml"
{meeting}{start}"""

_STEPS = """\
# what Accelerator() accumulates where a script does not say; Trainer has an argument of its own
export ACCELERATE_GRADIENT_ACCUMULATION_STEPS={steps}
"""

_PROCESSES_OF_ONE_NODE = """\
num_machines: 1
num_processes: {world}
machine_rank: 0"""
#: the file alone does not say where they meet, and its rdzv_backend is not read
_PROCESSES_OF_SEVERAL = "# run.sh says how many machines and processes there are, and where they meet"

_ONE_NODE = """\
exec accelerate launch --config_file "$config" "$@"
"""

_NODES = """\
exec accelerate launch --config_file "$config" --num_machines {nodes} --num_processes {world} \\
    --rdzv_backend c10d --main_process_ip "$HEAD" --main_process_port "${{RDZV_PORT:-29500}}" "$@"
"""


def emit(case: Case, layers: Sequence[str] = ()) -> tuple[TextFile, ...]:
    """Return ``accelerate.yaml``, and ``run.sh`` which starts ``accelerate launch`` by it.

    Args:
        case: what is planned.
        layers: classes of the model's repeated blocks, each of which FSDP2 shards by itself. Without any,
            transformers' models name their own.

    Raises:
        EmitError: accelerate cannot do what the plan says.
    """
    check_launch(case)
    _check(case)
    launch, alone = case.launch, case.launch.nodes == 1
    processes = _PROCESSES_OF_ONE_NODE.format(world=launch.world_size) if alone else _PROCESSES_OF_SEVERAL
    tables = {
        "fsdp_config": _fsdp(case.plan, layers),
        "deepspeed_config": _deepspeed(case.plan, launch.nodes),
        "parallelism_config": _parallelism(case.plan),
        "dynamo_config": _dynamo(case.plan),
    }
    config = _CONFIG.format(
        title=title(case),
        script="\n".join(f"# - {line}" for line in _of_the_script(case)),
        kind=_kind(case),
        processes=processes,
        precision=_PRECISIONS[case.plan.precision],
        tables="".join(_text(name, table) for name, table in tables.items() if table),
    )
    steps = case.plan.gradient_accumulation_steps
    script = _SCRIPT.format(
        title=title(case),
        usage=run_usage(launch),
        check=usage_check(run_call(launch)),
        variables="\n".join(variables(launch)),
        steps=_STEPS.format(steps=steps) if steps > 1 else "",
        meeting=meeting_check(launch),
        start=_ONE_NODE if alone else _NODES.format(nodes=launch.nodes, world=launch.world_size),
    )
    return (
        TextFile(path="accelerate.yaml", text=config),
        TextFile(path="run.sh", text=script, executable=True),
    )


def _check(case: Case) -> None:
    """Refuse what accelerate has no words for.

    Raises:
        EmitError: naming the field and the nearest that it has.
    """
    plan, mesh = case.plan, case.plan.mesh
    device, optimizer = case.hardware.device.type, case.workload.optimizer
    # what no launcher's script applies is no other way
    other = "" if refusals_of(plan, case.model) else ", or emit --to torchrun, whose scripts apply it"
    without = {
        f"processes on {device.value}": (
            device not in _REPLICAS,
            "it starts one process there: emit --to torchrun, and keep parastrat.auto_parallelize",
        ),
        f"pp {mesh.pp}": (mesh.pp > 1, f"plan --pp 1{other}"),
        f"tp {mesh.tp}": (mesh.tp > 1, f"plan --tp 1{other}"),
        f"ep {mesh.ep}": (mesh.ep > 1, "plan --ep 1"),
        f"recompute = {plan.recompute.value}": (
            plan.recompute in {Recompute.SELECTIVE, Recompute.ATTENTION},
            "plan --recompute full or none",
        ),
        f"precision = {plan.precision.value}": (
            plan.precision not in _PRECISIONS,
            "plan --precision bf16-mixed",
        ),
        f"backend = {plan.backend.value}": (
            # one process has none
            plan.backend is Backend.GLOO and mesh.world_size > 1,
            "emit --to torchrun: accelerate takes the device's own",
        ),
        "offload = optimizer": (
            plan.offload is Offload.OPTIMIZER and plan.shard not in _STAGES,
            "plan --offload parameters with fsdp2: what is sharded there goes to the host as a whole",
        ),
        "offload = parameters": (
            plan.offload is Offload.PARAMETERS and plan.shard is not Shard.PARAMETERS,
            "plan --strategy fsdp2",
        ),
        f"a loss in {case.workload.loss_chunks} chunks": (
            case.workload.loss_chunks > 1,
            "plan without --loss-chunks: the loss is the script's",
        ),
        f"shard = {plan.shard.value} over the cp axis": (
            mesh.cp > 1 and plan.shard is not Shard.PARAMETERS,
            "plan --strategy fsdp2+cp: it demands FSDP2 beside context parallelism",
        ),
        f"dp_replicate {mesh.dp_replicate} x cp {mesh.cp} without dp_shard": (
            mesh.cp > 1 and mesh.dp_replicate > mesh.dp_shard == 1,
            f"plan --dp-shard {mesh.dp_replicate} --dp-replicate 1: replicas beside cp need a shard axis",
        ),
        f"optimizer = {optimizer.value} beside DeepSpeed": (
            plan.shard in _STAGES and optimizer is not Optimizer.ADAMW,
            "plan --optimizer adamw",
        ),
    }
    for what, (is_so, hint) in without.items():
        if is_so:
            raise EmitError(f"accelerate cannot be configured for {what}", hint=hint)


def _kind(case: Case) -> str:
    plan = case.plan
    if plan.shard in _STAGES:
        return "DEEPSPEED"
    if plan.shards_parameters:
        return "FSDP"
    return "'NO'" if plan.mesh.world_size == 1 else _REPLICAS[case.hardware.device.type]


def _fsdp(plan: Plan, layers: Sequence[str]) -> _Table:
    if not plan.shards_parameters:
        return {}
    named: _Table = {"fsdp_transformer_layer_cls_to_wrap": ",".join(layers)} if layers else {}
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **named,
        "fsdp_reshard_after_forward": plan.reshard_after_forward,
        "fsdp_activation_checkpointing": plan.recompute is Recompute.FULL,
        "fsdp_offload_params": plan.offload is Offload.PARAMETERS,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _deepspeed(plan: Plan, nodes: int) -> _Table:
    if plan.shard not in _STAGES:
        return {}
    return {
        "zero_stage": _STAGES[plan.shard],
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "offload_optimizer_device": "cpu" if plan.offload is Offload.OPTIMIZER else "none",
        "offload_param_device": "none",
        "zero3_init_flag": False,
        # torchrun's way, and not that of ssh
        **({"deepspeed_multinode_launcher": "standard"} if nodes > 1 else {}),
    }


def _parallelism(plan: Plan) -> _Table:
    """Return the axes, where accelerate needs more than the number of processes to know them."""
    mesh = plan.mesh
    hybrid = plan.shards_parameters and mesh.dp_replicate > 1
    if not hybrid and mesh.cp == 1:
        return {}
    table: _Table = {
        "parallelism_config_dp_replicate_size": mesh.dp_replicate,
        "parallelism_config_dp_shard_size": mesh.dp_shard,
    }
    if mesh.cp > 1:
        table["parallelism_config_cp_size"] = mesh.cp
        gathers = plan.cp_method is ContextMethod.ALL_GATHER
        table["parallelism_config_cp_comm_strategy"] = "allgather" if gathers else "alltoall"
    return table


def _dynamo(plan: Plan) -> _Table:
    if plan.compile is Compile.NONE:
        return {}
    return {"dynamo_backend": "INDUCTOR", "dynamo_use_regional_compilation": True}


def _of_the_script(case: Case) -> Iterator[str]:
    """Yield what a plan says and the file has no place for, in Trainer's words where it has some."""
    plan, work = case.plan, case.workload
    yield f"per_device_train_batch_size: {plan.micro_batch_size}"
    yield f"gradient_accumulation_steps: {plan.gradient_accumulation_steps}"
    if work.sequence_length is not None:
        yield f"samples of {work.sequence_length} tokens"
    named = work.optimizer in _OPTIMIZERS
    yield f"optim: {_OPTIMIZERS[work.optimizer]}" if named else f"the optimizer {work.optimizer.value}"
    if plan.recompute is Recompute.FULL and not plan.shards_parameters:
        yield "gradient_checkpointing: true"
    if plan.precision is Precision.BF16:
        yield "the model's own format: dtype=torch.bfloat16"
    if plan.shards_parameters and plan.precision in {Precision.BF16_MIXED, Precision.FP16_MIXED}:
        yield "nothing of the format in which gradients are added up: it is that of the activations here"
    if plan.shards_parameters:
        yield (
            'trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT") before the last '
            "trainer.save_model(): of sharded states it writes no weights"
        )


def _text(name: str, table: _Table) -> str:
    lines = [f"  {key}: {_value(value)}" for key, value in table.items()]
    return "\n".join([f"{name}:", *lines, ""])


def _value(value: bool | int | str) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
