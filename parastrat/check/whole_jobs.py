"""Configurations that state a whole job: these are estimated as plans are, and must fit as plans must."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.config_file import TORCHTITANS, ConfigFormat
from parastrat.errors import CountError
from parastrat.parse.megatron import number_of
from parastrat.plan import Backend, Compile, Plan
from parastrat.profiles import load_stack
from parastrat.profiles.files import read_format
from parastrat.rules.backend import decide_backend
from parastrat.rules.megatron import OPTIONS
from parastrat.sources import load_source
from parastrat.sources.megatron import megatron_source
from parastrat.sources.presets import TransformerSource
from parastrat.sources.training import trained_model
from parastrat.tables import check_counts, check_samples
from parastrat.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Case
    from parastrat.config_file import ConfigFile
    from parastrat.hardware import Hardware
    from parastrat.launch import Launch
    from parastrat.model import ModelSource

_OF_PLAN = frozenset(
    {
        "mesh",
        "micro_batch_size",
        "gradient_accumulation_steps",
        "precision",
        "shard",
        "reshard_after_forward",
        "sequence_parallel",
        "loss_parallel",
        "cp_method",
        "recompute",
    }
)
_OF_PIPELINES = frozenset({"pp_schedule", "virtual_stages"})
#: what a function may hand on that nobody sees here
_INHERITED = frozenset({"offload", "compile", "async_tp"})
_OF_WORKLOAD = frozenset({"global_batch_size", "sequence_length", "optimizer"})


def stated_source(file: ConfigFile) -> ModelSource | None:
    """Return the model that a configuration is for; None where it names none, or none that is known."""
    if file.get("megatron") is not None:
        options = file.get("megatron")
        tp = number_of(options, OPTIONS["tp"], 1)
        return megatron_source(file.get("own.program"), options, tp or 1)
    if file.format not in TORCHTITANS:
        return None
    if file.format is ConfigFormat.TORCHTITAN:
        name, flavor = file.get("model.name") or "llama3", file.get("model.flavor") or "debugmodel"
    else:
        name, flavor = file.get("model_spec.family"), file.get("model_spec.flavor")
    found = read_format(ConfigFormat.TORCHTITAN.value)["models"].get(f"{name} {flavor}")
    return None if found is None else _of_torchtitan(load_source(found))


def _of_torchtitan(source: ModelSource | None) -> ModelSource | None:
    """Return a preset as torchtitan's own modules compute it.

    Presets are as transformers computes them: Llama 4's experts on every token, the scores of gpt-oss'
    attention in memory. Torchtitan routes, and takes flex attention
    (https://github.com/pytorch/torchtitan/blob/v0.2.2/torchtitan/models/moe/moe.py, models/gpt_oss).
    """
    if not isinstance(source, TransformerSource):
        return source
    experts = source.architecture.experts
    routed = None if experts is None else replace(experts, every_token=False)
    return replace(source, architecture=replace(source.architecture, scores=None, experts=routed))


def whole_case(
    file: ConfigFile,
    plan_fields: Mapping[str, Any],
    workload_fields: Mapping[str, Any],
    source: ModelSource | None,
    hardware: Hardware | None,
    launch: Launch,
) -> Case | None:
    """Return the estimated case of a configuration; None where a fact of the job is open.

    Args:
        file: whose format tells whether what is not stated is known.
        plan_fields: the fields of ``Plan`` that are stated or filled in.
        workload_fields: those of ``Workload``.
        source: the model, if it is known.
        hardware: what the job is to run on.
        launch: what is known of its start.

    Raises:
        ProfileError: the plan crosses a link that the hardware does not state.
    """
    is_whole = file.format in TORCHTITANS or file.get("megatron") is not None
    if not is_whole or source is None or not source.has_tokens or hardware is None:
        return None
    mesh, told = plan_fields.get("mesh"), _OF_WORKLOAD
    needed = _OF_PLAN if mesh is None or mesh.pp == 1 else _OF_PLAN | _OF_PIPELINES
    if file.format is ConfigFormat.TORCHTITAN_PYTHON:
        needed |= _INHERITED
        told |= {"loss_chunks"}
    if not needed <= plan_fields.keys() or not told <= workload_fields.keys():
        return None
    backend = decide_backend(hardware).backend or Backend.NCCL
    plan = Plan(**plan_fields, backend=backend)
    workload = Workload(**workload_fields, precision=plan.precision)
    if file.format in TORCHTITANS:
        stack = load_stack("torch-compile" if plan.compile is Compile.BLOCK else "torch")
        # without expert parallelism tensor parallelism divides them (apply_moe_ep_tp); with it a block's
        # units are prefetched together (apply_fsdp)
        stack = replace(stack, divides_experts=True, experts_apart=False)
    else:
        stack = load_stack("megatron-core")
    try:
        check_counts(plan)
        check_samples(workload)
    except CountError:
        # what is impossible of it the rules about its parts say
        return None
    model = trained_model(source, workload, stack.kernels)
    case = assess(Facts(model=model, hardware=hardware, workload=workload, stack=stack), plan)
    return replace(case, launch=launch)
