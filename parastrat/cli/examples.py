"""Cases on which a rule fires, for ``explain``: ordinary plans with one thing changed."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from parastrat.assess import assess, assess_all, columns_of
from parastrat.case import Facts
from parastrat.errors import UnknownFactError
from parastrat.hardware import NetworkKind
from parastrat.plan import Backend, Mesh, Offload, PipelineSchedule, Plan, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.records import field_types
from parastrat.rules import CaseRule, PlanRule
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.finding import Hit
    from parastrat.rules import Rule

#: model, hardware, tokens of a sample, stack
_JOBS: tuple[tuple[str, str, int | None, str], ...] = (
    ("llama-3.1-8b", "dgx-h100:2", 8192, "torch"),
    ("mixtral-8x7b", "dgx-h100:2", 4096, "torch"),
    ("gpt2", "8x-rtx-4090:2", 2048, "torch"),
    ("resnet-50", "dgx-1v:2", None, "torch"),
    ("gpt2", "cpu:2", 1024, "torch"),
    ("gpt2", "p5.48xlarge:2", 1024, "torch"),
    ("nemotron-h-8b", "dgx-h100:2", 8192, "torch"),
    ("nemotron-h-8b", "dgx-h100:2", 8192, "megatron-core"),
    ("llama-3.1-70b", "dgx-a100-40", 8192, "torch"),
    ("t5-large", "dgx-h100:2", 512, "torch"),
    ("gpt-oss-20b", "dgx-h100:2", 8192, "torch"),
)
_BATCH = 128

#: degrees beside which the data axes take the rest
_DEGREES: tuple[dict[str, int], ...] = (
    {"tp": 2},
    {"tp": 16},
    {"tp": 5},
    {"tp": 3},
    {"pp": 2},
    {"pp": 16},
    {"pp": 64},
    {"cp": 2},
    {"cp": 16},
    {"ep": 8},
    {"ep": 3},
    {"dp_replicate": 2},
    {"dp_replicate": 4},
    {"pp": 2, "tp": 2},
    {"pp": 2, "cp": 2},
    {"cp": 12},
)
#: plans whose settings are changed one by one
_CHANGED: tuple[dict[str, int], ...] = ({"pp": 2}, {"tp": 2}, {"cp": 2})

_NUMBERS = {"micro_batch_size": 64, "gradient_accumulation_steps": 3, "virtual_stages": 3}
_VARIABLES = {
    "NCCL_P2P_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "NCCL_CHECKS_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "GLOO_SOCKET_IFNAME": "^lo",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_ASYNC_ERROR_HANDLING": "1",
    "NCCL_DEBUG": "INFO",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    "NCCL_MULTI_RANK_GPU_ENABLE": "1",
    "NCCL_MNNVL_ENABLE": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
    "OMP_NUM_THREADS": "64",
    "NCCL_ALGO": "Tree",
}
_LAUNCHES: tuple[dict[str, Any], ...] = (
    {"store": "hash"},
    {"store": "file"},
    {"store": "redis"},
    {"backend": ""},
    {"backend": "nccl"},
    {"backend": "fake"},
    {"backend": "nvlink"},
    {"ranks_per_node": 16},
)


def example_of(rule: Rule) -> tuple[str, Hit] | None:
    """Return a case in words and what a rule says of it; None where no case that is tried shows it."""
    if not isinstance(rule, PlanRule | CaseRule):
        return None
    for model, on, length, stack in _JOBS:
        for changed, case, columns in _cases(model, on, length, stack):
            hit = _hit(rule, case, columns)
            if hit is not None:
                words = [f"{model} on {on} with {case.plan.mesh}", *([changed] if changed else [])]
                words += [stack] if stack != "torch" else []
                return ", ".join(words), hit
    return None


@cache
def _cases(model: str, on: str, length: int | None, stack: str) -> tuple[tuple[str, Case, Columns], ...]:
    """Return the cases of one job; kept, for whoever asks for several rules."""
    varied = _varied(_facts(model, on, length, stack))
    return tuple((changed, case, columns_of(case)) for changed, case in varied)


def _hit(rule: PlanRule | CaseRule, case: Case, columns: Columns) -> Hit | None:
    try:
        if isinstance(rule, CaseRule) or rule.mask(columns):
            return rule.hit(case)
    except UnknownFactError:
        pass
    return None


def _facts(model: str, on: str, length: int | None, name: str) -> Facts:
    stack, precision = load_stack(name), Precision.BF16_MIXED
    source = load_source(model)
    if source is None:
        raise AssertionError("presets need no torch")
    return Facts(
        model=source.at(length, precision, stack.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=_BATCH,
            sequence_length=length,
            optimizer=Optimizer.ADAMW,
            precision=precision,
        ),
        stack=stack,
    )


def _varied(facts: Facts) -> Iterator[tuple[str, Case]]:
    """Yield a plain case, then cases that differ from it in one thing, with that thing in words."""
    plain = _plan(facts, {}, _BATCH)
    yield from _assessed(facts, [("", plain), *(("", _plan(facts, axes, _BATCH)) for axes in _DEGREES)])
    for batch in (8, 12):
        few = replace(facts, workload=replace(facts.workload, global_batch_size=batch))
        plans = [_plan(few, axes, batch) for axes in ({}, {"pp": 8}, {"pp": 2})]
        yield from _assessed(few, [(f"global batch {batch}", plan) for plan in plans])
    others = [changed for axes in _CHANGED for changed in _other_plans(_plan(facts, axes, _BATCH))]
    yield from _assessed(facts, [*_other_plans(plain), *others])
    away = replace(plain, offload=Offload.OPTIMIZER)
    for optimizer in (Optimizer.ADAFACTOR, Optimizer.MUON):
        other = replace(facts, workload=replace(facts.workload, optimizer=optimizer))
        yield from _assessed(other, [(f"{optimizer}", plain), (f"{optimizer} on the host", away)])
    one_node = replace(facts, hardware=replace(facts.hardware, num_nodes=1))
    unsharded = replace(_plan(one_node, {}, _BATCH), shard=Shard.NONE)
    yield from _assessed(one_node, [("one node", unsharded)])
    yield from _other_surroundings(assess(facts, plain))


def _assessed(facts: Facts, plans: list[tuple[str, Plan]]) -> Iterator[tuple[str, Case]]:
    words, chosen = zip(*plans, strict=True)
    return zip(words, assess_all(facts, chosen), strict=True)


def _plan(facts: Facts, degrees: dict[str, int], batch: int) -> Plan:
    others = degrees.get("pp", 1) * degrees.get("tp", 1) * degrees.get("cp", 1)
    data = max(1, facts.hardware.world_size // (others * degrees.get("dp_replicate", 1)))
    mesh = Mesh(**{"dp_shard": data, **degrees})
    pipelined = mesh.pp > 1
    return Plan(
        mesh=mesh,
        micro_batch_size=1,
        gradient_accumulation_steps=max(1, batch // mesh.dp),
        precision=facts.workload.precision,
        backend=Backend.NCCL if facts.hardware.device.type.value == "cuda" else Backend.GLOO,
        shard=Shard.PARAMETERS,
        reshard_after_forward=not pipelined,
        sequence_parallel=mesh.tp > 1,
        pp_schedule=PipelineSchedule.ONE_F_ONE_B if pipelined else None,
    )


def _other_plans(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield plans with one setting changed, each choice of each setting once."""
    kinds = field_types(Plan)
    for field in fields(Plan):
        name, kind = field.name, kinds[field.name]
        choices: list[Any] = []
        if kind is bool:
            choices = [not getattr(plan, name)]
        elif name == "pp_schedule":
            choices = [None, *PipelineSchedule]
        elif isinstance(kind, type) and issubclass(kind, Enum):
            choices = list(kind)
        elif name in _NUMBERS:
            choices = [_NUMBERS[name]]
        for choice in choices:
            if choice != getattr(plan, name):
                shown = choice.value if isinstance(choice, Enum) else choice
                yield f"{name} {shown}", replace(plan, **{name: choice})


def _other_surroundings(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield cases of the same plan with another network, launch or environment."""
    hardware, launch = case.hardware, case.launch
    networks: list[dict[str, Any]] = [{"kind": kind} for kind in NetworkKind]
    networks += [{"gpudirect": False}, {"plugin": False}, {"plugin": None}, {"socket_ifname": None}]
    for network in networks:
        changed = replace(hardware, network=replace(hardware.network, **network))
        yield _named("network", network), replace(case, hardware=changed)
    for change in _LAUNCHES:
        yield _named("launch", change), replace(case, launch=replace(launch, **change))
    for name, value in _VARIABLES.items():
        env = {**launch.env, name: value}
        yield f"{name}={value}", replace(case, launch=replace(launch, env=env))


def _named(part: str, change: dict[str, Any]) -> str:
    ((name, value),) = change.items()
    shown = value.value if isinstance(value, Enum) else repr(value)
    return f"{part} {name} {shown}"
