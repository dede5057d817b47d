"""PS106 and PS107: the memory of the hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.errors import UnknownFactError
from parastrat.finding import Hit, Severity
from parastrat.hardware import DeviceType
from parastrat.plan import Offload
from parastrat.rules.rule import case_rule, plan_rule
from parastrat.units import GIB

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask


@plan_rule(
    "PS106",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
def host_memory_is_too_small(p: Columns) -> Mask:
    """What a plan keeps on its hosts must fit into their memory.

    Offloading moves parameters, gradients and optimizer states of all ranks of a host into one memory, and
    every process takes about two gigabytes of it before it has a model. Where that is more than there is,
    the kernel ends a process, mostly without a word in the job's own log.
    """
    return p.host_needed > p.host_capacity


@host_memory_is_too_small.message
def _host_memory_is_too_small(case: Case) -> Hit:
    from parastrat.memory.host import host_memory  # noqa: PLC0415 - numpy; rules load without

    host = host_memory(case.facts, case.plan)
    if host is None or host.capacity is None:
        raise UnknownFactError("host_capacity")
    offload = case.plan.offload
    offloads = "" if offload is Offload.NONE else f" with the {offload.value} offloaded"
    return Hit(
        message=f"the {host.ranks} processes of a host need {host.least / GIB:,.0f} GiB of its own memory"
        f"{offloads}; it has {host.capacity / GIB:,.0f} GiB",
        fix="offload less, or use more hosts" if offloads else "start fewer processes on a host",
    )


@case_rule("PS107", Severity.INFO, source="https://docs.pytorch.org/docs/stable/meta.html")
def whole_models_exceed_the_host(case: Case) -> Hit | None:
    """Build large models on the meta device.

    A script that builds or loads the whole model does so in every process of a host at once, before
    anything is sharded. Eight processes with a model of 70 billion fp32 parameters need 2.2 TB. On the meta
    device a model takes no memory until each rank makes its own shards.
    """
    from parastrat.memory.host import processes_bytes, whole_models_bytes  # noqa: PLC0415 - as above

    capacity = case.hardware.host.memory_bytes
    if capacity is None or case.hardware.device.type is DeviceType.CPU:
        return None
    needed = processes_bytes(case.facts, case.plan) + whole_models_bytes(case.facts, case.plan)
    if needed <= capacity:
        return None
    ranks = min(case.plan.mesh.world_size, case.hardware.devices_per_node)
    return Hit(
        message=f"{ranks} processes that each build the whole model take {needed / GIB:,.0f} GiB of a "
        f"host's {capacity / GIB:,.0f} GiB",
        fix="build it on the meta device and load its weights tensor by tensor, as auto_parallelize does "
        "with a function that builds it and checkpoint=",
    )
