"""PS50x: the number of processes, and what they share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import whole_number
from parastrat.finding import Hit, Severity
from parastrat.hardware import DeviceType
from parastrat.rules.rule import case_rule

if TYPE_CHECKING:
    from parastrat.case import Case

_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
#: no count of threads has as many
_DIGITS = 8


@case_rule("PS501", Severity.ERROR, source=_TORCHRUN)
def launch_is_not_the_mesh(case: Case) -> Hit | None:
    """As many processes must be started as the mesh has ranks.

    More, and the mesh leaves some outside, who hang in the first collective over the world. Fewer, and it
    cannot be built.
    """
    launch, mesh = case.launch, case.plan.mesh
    if launch.world_size == mesh.world_size:
        return None
    return Hit(
        message=f"{launch.nodes} nodes x {launch.ranks_per_node} processes = {launch.world_size}, but "
        "the mesh "
        f"has {mesh.world_size} ranks ({mesh})",
        fix=f"start {mesh.world_size} processes, or plan again for {launch.world_size}",
    )


@case_rule(
    "PS502",
    Severity.ERROR,
    source="https://github.com/NVIDIA/nccl/blob/5067397/src/init.cc#L1057",
    covers=("PIT511",),
)
def more_ranks_than_devices(case: Case) -> Hit | None:
    """A node must not start more ranks than it has accelerators.

    The surplus ranks ask for a device that does not exist, or share one, which NCCL refuses: "Duplicate GPU
    detected", since 2.30 "Multiple Ranks are using the same GPU/Partition".
    """
    hardware = case.hardware
    if hardware.device.type is DeviceType.CPU:
        return None
    accelerators = hardware.accelerators_per_node or hardware.devices_per_node
    ranks = case.launch.ranks_per_node
    if ranks <= accelerators:
        return None
    return Hit(
        message=f"{ranks} ranks on nodes with {accelerators} accelerators",
        fix=f"start {accelerators} ranks per node",
    )


@case_rule("PS503", Severity.INFO, source=_TORCHRUN, covers=("PIT623",))
def threads_are_unset(case: Case) -> Hit | None:
    """Say how many threads a rank may use.

    torchrun sets OMP_NUM_THREADS to 1 where nothing is said, to be safe, and warns. Data preparation, CPU
    offload and CPU training then use one core each, of however many there are.
    """
    launch, cores = case.launch, case.hardware.host.cores
    if launch.ranks_per_node == 1 or "OMP_NUM_THREADS" in launch.env:
        return None
    known = f" of {cores} cores" if cores else ""
    number = str(max(1, cores // launch.ranks_per_node)) if cores else "cores / ranks"
    return Hit(
        message=f"OMP_NUM_THREADS is unset: each of {launch.ranks_per_node} ranks uses one{known}",
        fix=f"set OMP_NUM_THREADS={number}",
    )


@case_rule("PS504", Severity.WARNING, source=_TORCHRUN)
def threads_exceed_cores(case: Case) -> Hit | None:
    """The ranks of a node share its cores.

    More threads than cores take turns, and a rank that waits makes every other wait in the next collective.
    """
    launch, cores = case.launch, case.hardware.host.cores
    threads = whole_number(launch.env.get("OMP_NUM_THREADS"), _DIGITS)
    if threads is None or cores is None or launch.ranks_per_node * threads <= cores:
        return None
    return Hit(
        message=f"{launch.ranks_per_node} ranks x {threads} threads on {cores} cores",
        fix=f"set OMP_NUM_THREADS={max(1, cores // launch.ranks_per_node)}",
    )


@case_rule("PS505", Severity.WARNING, source=_TORCHRUN)
def threads_are_no_number(case: Case) -> Hit | None:
    """OMP_NUM_THREADS is a positive number.

    OpenMP ignores anything else, and then takes all cores for each rank: as many times too many threads as
    the node has ranks.
    """
    threads = case.launch.env.get("OMP_NUM_THREADS")
    # what the shell makes of an expression is unknown
    if threads is None or whole_number(threads, _DIGITS) or "$" in threads or "`" in threads:
        return None
    return Hit(
        message=f"OMP_NUM_THREADS={threads}",
        fix="set OMP_NUM_THREADS to the cores of a node divided by its ranks",
    )


@case_rule("PS506", Severity.INFO, source=_TORCHRUN)
def devices_stay_idle(case: Case) -> Hit | None:
    """Devices that a plan leaves out stay allocated.

    A node is usually granted whole. Fewer ranks than devices can be right, where communication costs more
    than it brings, but then a smaller allocation is cheaper.
    """
    launch, devices = case.launch, case.hardware.world_size
    if launch.world_size >= devices:
        return None
    return Hit(
        message=f"{launch.world_size} of {devices} devices work, {devices - launch.world_size} idle",
        fix="ask for fewer devices, or plan for all",
    )
