"""A plan as a configuration of torchtitan: a Python function, as its run script takes them since 2026."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from parastrat.emit import torchrun
from parastrat.emit.shell import check_launch, exports, title
from parastrat.emit.text_file import EmitError, TextFile
from parastrat.plan import Compile, ContextMethod, Offload, PipelineSchedule, Recompute, Shard
from parastrat.rules.runtime_support import refusals_of
from parastrat.rules.torchtitan_models import BASELINES
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.rules.torchtitan_models import Baseline


#: families whose linear layers torchtitan's float8 converter is used on by its own configurations
_WITH_FLOAT8 = ("llama3",)

_CONFIG = '''\
"""{title}, for torchtitan.

Lies on PYTHONPATH and is named by --module and --config; run.sh does so. Data, learning rate and the number
of steps are those of torchtitan's {function}.
"""

{imports}


{stages}def planned() -> Trainer.Config:
    """Return {function} with the plan laid over it."""
    config = {function}()
{model}    config.parallelism = ParallelismConfig(
{parallelism}    )
    config.training.num_tokens_per_microbatch_per_dp_rank = {samples} * {length}
    config.training.num_tokens_per_train_step = {batch} * {length}
    config.training.max_context_length = {length}
{precision}    config.training.enable_cpu_offload = {offloads}
    config.training.disable_cuda_graphs = {without_graphs}{why_no_graphs}
    config.activation_checkpoint = {recompute}
    config.compile = {compile}
    return config
'''

_SCRIPT = """\
#!/usr/bin/env bash
# {title}
# {usage}, where torchtitan is installed and its assets/ lie
set -euo pipefail

PYTHONPATH="$(cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")" && pwd)${{PYTHONPATH:+:$PYTHONPATH}}"
export PYTHONPATH
{exports}
{start}"""

_STAGES = """\
        # layers of each stage: even in work, with the embedding on the first and the head on the last
        module_fqns_per_model_part=stages({layers}),
"""

_STAGES_DEFINITION = '''\
def stages(layers: list[int]) -> list[list[str]]:
    """Name the modules of each pipeline stage, given its number of layers."""
    ends = [sum(layers[: stage + 1]) for stage in range(len(layers))]
    names = [[f"layers.{i}" for i in range(end - count, end)] for end, count in zip(ends, layers)]
    return [["tok_embeddings", *names[0]], *names[1:-1], [*names[-1], "norm", "lm_head"]]


'''

_RECOMPUTE = {
    Recompute.NONE: "None",
    Recompute.SELECTIVE: "SelectiveAC.Config()",
    Recompute.FULL: "FullAC.Config()",
}


def emit(case: Case) -> tuple[TextFile, ...]:
    """Return ``plan_torchtitan.py``, a configuration, and ``run.sh``, which trains by it.

    Raises:
        EmitError: torchtitan does not have the model, or cannot do what the plan says.
    """
    check_launch(case)
    baseline = _baseline(case)
    _check(case, baseline)
    launch = case.launch
    usage = (
        "./run.sh"
        if launch.nodes == 1
        else f"on each of the {launch.nodes} nodes: HEAD=first-node ./run.sh"
    )
    script = _SCRIPT.format(
        title=title(case),
        usage=usage,
        exports=exports(launch),
        start=torchrun.start(launch, '-m torchtitan.train --module plan_torchtitan --config planned "$@"'),
    )
    return (
        TextFile(path="plan_torchtitan.py", text=_config(case, baseline)),
        TextFile(path="run.sh", text=script, executable=True),
    )


def _baseline(case: Case) -> Baseline:
    ref = case.model.ref
    if ref not in BASELINES:
        other = "" if refusals_of(case.plan, case.model) else "; or emit for torchrun or slurm"
        raise EmitError(f"torchtitan has no {ref}", hint=f"it has {', '.join(BASELINES)}{other}")
    return BASELINES[ref]


def _check(case: Case, baseline: Baseline) -> None:
    """Refuse what torchtitan has no words for.

    Raises:
        EmitError: naming the field and the nearest that it has.
    """
    plan = case.plan
    without = {
        "recompute = attention": (plan.recompute is Recompute.ATTENTION, "plan --recompute selective"),
        f"shard = {plan.shard.value}": (
            plan.shard in {Shard.OPTIMIZER, Shard.GRADIENTS},
            "plan with fsdp2 or hsdp, which shard the parameters too",
        ),
        "cp_method = ring": (
            plan.mesh.cp > 1 and plan.cp_method is ContextMethod.RING,
            "plan with cp_method = all_gather",
        ),
        "offload = optimizer": (
            plan.offload is Offload.OPTIMIZER,
            'set offload = "none" under [plan] in the file',
        ),
        "precision = fp16-mixed": (plan.precision is Precision.FP16_MIXED, "plan --precision bf16-mixed"),
        f"precision = fp8 for {case.model.ref}": (
            plan.precision is Precision.FP8 and baseline.family not in _WITH_FLOAT8,
            "plan --precision bf16-mixed",
        ),
        f"optimizer = {case.workload.optimizer.value}": (
            case.workload.optimizer is not Optimizer.ADAMW,
            "plan --optimizer adamw, or change config.optimizer in the emitted file of such a plan",
        ),
        f"a loss in {case.workload.loss_chunks} chunks": (
            case.workload.loss_chunks > 1,
            "plan without --loss-chunks: its loss is that of torchtitan's own configuration",
        ),
    }
    for what, (is_so, hint) in without.items():
        if is_so:
            raise EmitError(f"torchtitan cannot be configured for {what}", hint=hint)


def _config(case: Case, baseline: Baseline) -> str:
    plan = case.plan
    pipelined, borrows = plan.mesh.pp > 1, plan.mesh.ep > 1
    return _CONFIG.format(
        title=title(case).replace("\\", "/").replace('"', "'"),
        function=baseline.function,
        imports=_imports(plan, baseline),
        stages=_STAGES_DEFINITION if pipelined else "",
        model=_model(plan, baseline),
        parallelism=_parallelism(case),
        samples=plan.micro_batch_size,
        batch=plan.global_batch_size,
        length=case.workload.sequence_length,
        precision=_precision(plan.precision),
        without_graphs=pipelined or borrows,
        why_no_graphs="  # they know no pipelines and no exchange of tokens"
        if pipelined or borrows
        else "",
        offloads=plan.offload is Offload.PARAMETERS,
        recompute=_RECOMPUTE[plan.recompute],
        compile=_compile(plan),
    )


def _imports(plan: Plan, baseline: Baseline) -> str:
    module = f"torchtitan.models.{baseline.family}"
    lines = ["from torchtitan.config import CompileConfig, ParallelismConfig"]
    if plan.recompute is not Recompute.NONE:
        kind = "FullAC" if plan.recompute is Recompute.FULL else "SelectiveAC"
        lines.append(f"from torchtitan.distributed.activation_checkpoint import {kind}")
    if plan.precision is Precision.FP8:
        lines.append("from torchtitan.components.quantization import Float8LinearConverter")
    lines += [
        f"from {module} import model_registry",
        f"from {module}.config_registry import {baseline.function}",
        "from torchtitan.trainer import Trainer",
    ]
    return "\n".join(sorted(lines))


def _model(plan: Plan, baseline: Baseline) -> str:
    """Return the model anew: a baseline may have it in another number format."""
    if plan.precision is not Precision.FP8:
        return f'    config.model_spec = model_registry("{baseline.flavor}")\n'
    return f"""\
    converter = Float8LinearConverter.Config(
        filter_fqns=["lm_head"], model_compile_enabled={plan.compile is Compile.BLOCK}
    )
    config.model_spec = model_registry("{baseline.flavor}", converters=[converter])
"""


def _parallelism(case: Case) -> str:
    plan, mesh = case.plan, case.plan.mesh
    # with one shard torchtitan wraps in fully_shard all the same, over the replicas alone
    fields = {
        "data_parallel_replicate_degree": mesh.dp_replicate,
        "data_parallel_shard_degree": mesh.dp_shard,
        "context_parallel_degree": mesh.cp,
        "tensor_parallel_degree": mesh.tp,
        "expert_parallel_degree": mesh.ep,
        "pipeline_parallel_degree": mesh.pp,
    }
    lines = [f"        {name}={degree},\n" for name, degree in fields.items()]
    if mesh.tp > 1:
        lines.append(f"        enable_sequence_parallel={plan.sequence_parallel},\n")
    if plan.shard is Shard.PARAMETERS:
        policy = "always" if plan.reshard_after_forward else "never"
        lines.append(f'        fsdp_reshard_after_forward="{policy}",\n')
    if mesh.pp > 1:
        schedule = plan.pp_schedule or PipelineSchedule.ONE_F_ONE_B
        lines += [
            f'        pipeline_parallel_schedule="{schedule.value}",\n',
            f"        num_pp_microbatches={plan.gradient_accumulation_steps},\n",
            _STAGES.format(layers=_layers_per_stage(case.model, mesh.pp * plan.virtual_stages)),
        ]
    return "".join(lines)


def _layers_per_stage(model: ModelSpec, stages: int) -> str:
    """Return the repeated blocks of each stage, as the estimate cuts: ``[3] + [4] * 30 + [3]``."""
    from parastrat.ranks.stages import cut  # noqa: PLC0415 - numpy, for pipelines alone

    layers = [
        sum(count for count, block in zip(repeats, model.blocks, strict=True) if block.unit)
        for repeats in cut(model, stages)
    ]
    if 0 in layers:
        raise EmitError(
            f"a stage of {stages} would have no layer of its own; torchtitan puts one on each",
            hint="plan with fewer pipeline or virtual stages",
        )
    runs = [(count, len([*equal])) for count, equal in groupby(layers)]
    return " + ".join(f"[{count}] * {times}" if times > 1 else f"[{count}]" for count, times in runs)


def _precision(precision: Precision) -> str:
    weights = "bfloat16" if precision is Precision.BF16 else "float32"
    compute = "float32" if precision is Precision.FP32 else "bfloat16"
    return (
        f'    config.training.dtype = "{weights}"\n'
        f'    config.training.mixed_precision_param = "{compute}"\n'
    )


def _compile(plan: Plan) -> str:
    if plan.compile is not Compile.BLOCK:
        return "CompileConfig(enable=False)"
    return f"CompileConfig(enable=True, enable_async_tensor_parallel={plan.async_tp})"
