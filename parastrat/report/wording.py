"""How plans, devices and workloads are called in reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.cost.offload import host_rates
from parastrat.hardware import DeviceType, FigureKind
from parastrat.memory.host import host_memory
from parastrat.plan import Compile, Offload, Shard
from parastrat.report.numbers import size
from parastrat.units import GB, counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.hardware import Hardware
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.workload import Workload

_DEVICE_WORDS = {
    DeviceType.CPU: ("CPU process", "CPU processes"),
    DeviceType.HPU: ("HPU", "HPUs"),
    DeviceType.NPU: ("NPU", "NPUs"),
}


def strategy_name(strategy: str) -> str:
    """Return a strategy as people write it, such as ``FSDP2 + TP``."""
    return strategy.upper().replace("+", " + ")


def plan_name(case: Case) -> str:
    """Return a plan as it is told from others: ``FSDP2 + TP (dp_shard 8 x tp 8)``, ``one GPU``."""
    mesh = case.plan.mesh
    if mesh.world_size == 1:
        return f"one {device_word(case.hardware)}"
    return f"{strategy_name(case.plan.strategy)} ({mesh})"


def device_word(hardware: Hardware, number: int = 1) -> str:
    """Return what a rank runs on: ``GPU``, ``CPU processes``."""
    one, many = _DEVICE_WORDS.get(hardware.device.type, ("GPU", "GPUs"))
    return one if number == 1 else many


def hardware_words(hardware: Hardware) -> str:
    """Return the cluster, such as ``dgx-h100:8: 8 nodes of 8 GPUs (h100-sxm5)``.

    One device, which others may stand idle beside, is ``one GPU of dgx-h100:8 (h100-sxm5)``.
    """
    if hardware.world_size == 1:
        # a process alone has all cores of its host
        whole = " with all cores" if hardware.device.type is DeviceType.CPU else ""
        return f"one {device_word(hardware)}{whole} of {hardware.name} ({hardware.device.name})"
    if hardware.name.startswith("auto:"):
        # what was probed is named by what was found
        return hardware.name
    nodes = counted(hardware.num_nodes, "node")
    each = f"{hardware.devices_per_node} {device_word(hardware, hardware.devices_per_node)}"
    links = "; links are assumed" if _links_are_assumed(hardware) else ""
    return f"{hardware.name}: {nodes} of {each} ({hardware.device.name}{links})"


def _links_are_assumed(hardware: Hardware) -> bool:
    """Whether nobody stated any figure of the links, as of ``DEVICExM``."""
    links = [link for link in (hardware.scale_up, hardware.scale_out) if link is not None]
    kinds = {entry.kind for link in links for entry in link.provenance}
    return kinds == {FigureKind.ASSUMED}


def a_device(hardware: Hardware) -> str:
    """Return the device word as a unit of account: ``a GPU``, ``an HPU``."""
    word = device_word(hardware)
    return f"{'an' if word[0] in 'HN' else 'a'} {word}"


def workload_terms(workload: Workload, model: ModelSpec) -> dict[str, str]:
    """Return each of the workload's settings in words, by its field."""
    sample = "sample" if model.sequence_length is None else "sequence"
    terms = {"global_batch_size": f"global batch {counted(workload.global_batch_size, sample)}"}
    if workload.sequence_length is not None:
        terms["sequence_length"] = f"sequence length {workload.sequence_length:,}"
    terms["precision"] = f"precision {workload.precision.value}"
    terms["optimizer"] = f"optimizer {workload.optimizer.value}"
    if workload.loss_chunks > 1:
        terms["loss_chunks"] = f"loss in {workload.loss_chunks} chunks"
    return terms


def batch_words(plan: Plan) -> str:
    """Return the batch arithmetic, such as ``512 = micro-batch 2 x accumulation 4 x data ranks 64``."""
    kind = "micro-batches" if plan.mesh.pp > 1 else "accumulation"
    return (
        f"{plan.global_batch_size:,} = micro-batch {plan.micro_batch_size} "
        f"x {kind} {plan.gradient_accumulation_steps} x data-parallel {plan.mesh.dp}"
    )


def option_words(plan: Plan) -> list[str]:
    """Return what the plan does beside its mesh, in words; what is off is left out."""
    words = [f"recompute {plan.recompute.value}"]
    if plan.shard is Shard.PARAMETERS:
        gathered = "freed after forward" if plan.reshard_after_forward else "kept gathered until backward"
        words.append(f"parameters {gathered}")
    elif plan.shard is not Shard.NONE:
        words.append(f"shards {plan.shard.value}")
    if plan.offload is not Offload.NONE:
        words.append(f"offloads {plan.offload.value}")
    if plan.sequence_parallel:
        words.append("sequence parallel")
    if plan.loss_parallel:
        words.append("loss parallel")
    if plan.async_tp:
        words.append("async tp")
    if plan.mesh.cp > 1:
        words.append(f"context by {plan.cp_method.value.replace('_', '-')}")
    if plan.compile is not Compile.NONE:
        words.append("compiled block by block")
    if plan.pp_schedule is not None:
        stages = f", {plan.virtual_stages} stages a rank" if plan.virtual_stages > 1 else ""
        words.append(f"schedule {plan.pp_schedule.value}{stages}")
    return words


def offload_words(case: Case) -> str:
    """Return the rates on which offloading's time rests, and what a host needs; what is assumed is said."""
    return f"{_host_rate_words(case)}{_host_room_words(case)}"


def _host_room_words(case: Case) -> str:
    host = host_memory(case.facts, case.plan)
    if host is None:
        return ""
    had = "how much it has is unknown" if host.capacity is None else f"it has {size(host.capacity)}"
    return f"; a host needs {size(host.least)}, {had}"


def _host_rate_words(case: Case) -> str:
    rates, each = host_rates(case.facts), a_device(case.hardware)
    link = f"{rates.link / GB:,.0f} GB/s to {each}"
    if case.hardware.device.host_bytes_per_s is None:
        link += " (assumed, as fast as its own memory: no link is known)"
    elif rates.link_is_assumed:
        link += " (assumed)"
    if rates.memory is None:
        return f"{link}, as much in the host's memory for each (assumed: nothing is known of it)"
    return f"{link}, {rates.memory / GB:,.0f} GB/s in the host's memory"
