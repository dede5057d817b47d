"""PS30x: the backend of a plan against its devices and its schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.columns import code_of
from parastrat.finding import Hit, Severity
from parastrat.hardware import DeviceType
from parastrat.plan import Backend, Offload
from parastrat.rules.backend import decide_backend
from parastrat.rules.rule import case_rule, plan_rule

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

_DOCS = "https://docs.pytorch.org/docs/stable/distributed.html"
_CHOICE = f"{_DOCS}#which-backend-to-use"

_CPU = code_of(DeviceType.CPU)
_CUDA = code_of(DeviceType.CUDA)
_GLOO = code_of(Backend.GLOO)
_NCCL = code_of(Backend.NCCL)
_MPI = code_of(Backend.MPI)
_XCCL = code_of(Backend.XCCL)
_HCCL = code_of(Backend.HCCL)

#: names that ``init_process_group`` of torch 2.13 takes
_KNOWN = ("gloo", "nccl", "xccl", "ucc", "mpi", "fake", "hccl")

#: names that are not for training by default, and why
_SPECIAL = {
    "ucc": "is being retired, and needs a torch built with it",
    "fake": "returns from every collective at once, so nothing is trained",
}


@plan_rule("PS301", Severity.ERROR, source=_CHOICE, covers=("PIT601",))
def nccl_without_gpus(p: Columns) -> Mask:
    """NCCL moves tensors between GPUs only.

    It has no collective for CPU tensors, and CPU wheels of torch do not contain it. CPU processes need
    Gloo, or MPI where torch was built with it.
    """
    return (p.backend == _NCCL) & (p.device_type == _CPU) & (p.world_size > 1)


@nccl_without_gpus.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"backend nccl on {case.hardware.name}, whose {case.plan.mesh.world_size} ranks are "
        "CPU processes",
        fix=f"use backend {_documented(case)}",
    )


@plan_rule("PS302", Severity.WARNING, source=_CHOICE, covers=("PIT602",))
def gloo_for_gpus(p: Columns) -> Mask:
    """Gloo is not for training on GPUs.

    It copies tensors through host memory, an order of magnitude slower than NCCL, and knows no send and
    receive for them. It is the documented fallback when NCCL fails, and the only choice where NCCL does not
    exist or ranks share a GPU.
    """
    return (p.backend == _GLOO) & (p.device_type == _CUDA) & (p.world_size > 1)


@gloo_for_gpus.message
def _(case: Case) -> Hit:
    decision = decide_backend(case.hardware)
    name = case.hardware.name
    if decision.backend is Backend.GLOO:
        return Hit(
            message=f"gloo between the GPUs of {name}: {decision.reason}",
            fix=decision.fallback or "give every rank a GPU of its own, then use nccl",
        )
    return Hit(
        message=f"gloo between {case.plan.mesh.world_size} GPUs of {name} copies through host memory",
        fix=f"use backend {_documented(case)}",
    )


@plan_rule("PS303", Severity.ERROR, source=f"{_DOCS}#backends")
def pipeline_over_gloo(p: Columns) -> Mask:
    """Never run a pipeline between GPUs over Gloo.

    Stages send activations point to point, and Gloo has no send and receive for tensors on GPUs. So it is
    not a fallback there either.
    """
    return (p.pp > 1) & (p.backend == _GLOO) & (p.device_type == _CUDA)


@pipeline_over_gloo.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"pp={case.plan.mesh.pp} over gloo on {case.hardware.name}",
        fix="use nccl; where it is out of reach, plan without pp (--pp 1)",
    )


@plan_rule("PS304", Severity.ERROR, source=f"{_DOCS}#backends")
def backend_of_other_devices(p: Columns) -> Mask:
    """Vendors' backends serve their own devices.

    nccl is for NVIDIA's and AMD's GPUs (torch's type cuda), xccl for Intel's (xpu), hccl for Gaudi and
    Ascend (hpu, npu). MPI in torch moves CPU tensors.
    """
    nccl = (p.backend == _NCCL) & (p.device_type != _CUDA) & (p.device_type != _CPU)
    xccl = (p.backend == _XCCL) & (p.device_type != code_of(DeviceType.XPU))
    others = (p.device_type != code_of(DeviceType.HPU)) & (p.device_type != code_of(DeviceType.NPU))
    hccl = (p.backend == _HCCL) & others
    mpi = (p.backend == _MPI) & (p.device_type != _CPU)
    return (p.world_size > 1) & (nccl | xccl | hccl | mpi)


@backend_of_other_devices.message
def _(case: Case) -> Hit:
    device = case.hardware.device
    return Hit(
        message=f"backend {case.plan.backend.value} does not serve {device.name} (device type "
        f"{device.type.value})",
        fix=f"use backend {_documented(case)}",
    )


@plan_rule(
    "PS305",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/notes/mps.html",
)
def several_apple_devices(p: Columns) -> Mask:
    """Plan one device on Apple GPUs.

    A Mac has one GPU, and torch offers no backend that moves its tensors between machines: Gloo would copy
    each through the host.
    """
    return (p.device_type == code_of(DeviceType.MPS)) & (p.world_size > 1)


@several_apple_devices.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"{case.plan.mesh.world_size} ranks on Apple GPUs",
        fix="plan a single device, or machines with other accelerators",
    )


@case_rule("PS306", Severity.WARNING, source=_CHOICE, covers=("PIT603",))
def mpi_is_not_in_wheels(case: Case) -> Hit | None:
    """Backend mpi needs a torch built from source.

    The documented choice for CPU hosts on InfiniBand without IP over it is MPI, but no wheel has it:
    "Distributed package doesn't have MPI built in". MPI as a launcher is another matter, and works with any
    backend.
    """
    if case.plan.backend is not Backend.MPI or case.plan.mesh.world_size == 1:
        return None
    options = decide_backend(case.hardware).options
    return Hit(
        message=f"backend mpi on {case.hardware.name}: torch's wheels do not have it",
        fix="; or ".join(options) or "use gloo",
    )


@case_rule("PS307", Severity.WARNING, source=_CHOICE)
def documented_backend_is_open(case: Case) -> Hit | None:
    """What decides the backend should be known.

    CPU hosts on InfiniBand use Gloo where IP runs over it and MPI where not. The two differ by the speed of
    the network, and by whether an ordinary torch can run at all.
    """
    decision = decide_backend(case.hardware)
    if decision.certain:
        return None
    return Hit(
        message=decision.reason,
        fix="run `parastrat probe` on one of the hosts, and plan with --on its file",
    )


@case_rule("PS308", Severity.WARNING, source=_CHOICE)
def gloo_beside_infiniband(case: Case) -> Hit | None:
    """Gloo over Ethernet leaves InfiniBand idle.

    Without IP over InfiniBand Gloo has only the Ethernet interface. That runs with every torch, at
    Ethernet's speed; the documented choice is MPI, and enabling IP over InfiniBand is the better mend.
    """
    decision = decide_backend(case.hardware)
    if decision.backend is not Backend.MPI or case.plan.backend is not Backend.GLOO:
        return None
    interface = case.hardware.network.socket_ifname or "the Ethernet interface"
    return Hit(
        message=f"gloo on {case.hardware.name} runs over {interface}: its InfiniBand has no IP",
        fix=decision.options[0],
    )


@case_rule(
    "PS309",
    Severity.WARNING,
    source=f"{_DOCS}#torch.distributed.init_process_group",
    covers=("PIT605",),
)
def no_backend_for_cpu_tensors(case: Case) -> Hit | None:
    """Name a backend for CPU tensors beside the accelerator's.

    Checkpoints, gathered objects and offloaded shards are CPU tensors. With nccl alone their first
    collective fails, hours into a run: "No backend type associated with device type cpu".
    """
    backend = case.launch.backend
    if case.launch.world_size == 1 or not backend or "cpu:" in backend or "gloo" in backend:
        return None
    if case.hardware.device.type is DeviceType.CPU:
        return None
    device = case.launch.device
    return Hit(
        message=f"backend {backend} has none for CPU tensors",
        fix=f"use cpu:gloo,{device}:{backend.split(':')[-1]}",
    )


@case_rule(
    "PS310",
    Severity.ERROR,
    source="https://github.com/pytorch/pytorch/issues/148532",
    covers=("PIT412",),
)
def offload_without_cpu_backend(case: Case) -> Hit | None:
    """Offloaded shards need a backend for CPU tensors.

    They are reduced and gathered on the host. nccl alone cannot; Gloo beside it can.
    """
    backend = case.launch.backend
    if case.plan.offload is Offload.NONE or case.launch.world_size == 1 or "gloo" in backend:
        return None
    return Hit(
        message=f"offload = {case.plan.offload.value} with backend {backend or 'left out'}",
        fix=f"use cpu:gloo,{case.launch.device}:{case.plan.backend.value}",
    )


@case_rule(
    "PS311",
    Severity.WARNING,
    source="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/distributed_c10d.py",
)
def backend_is_left_out(case: Case) -> Hit | None:
    """Write the backend out.

    Left to itself `init_process_group` creates one backend for one device type, although its documentation
    promises two, and which one depends on the torch version.
    """
    if case.launch.world_size == 1 or case.launch.backend:
        return None
    return Hit(
        message=f"{case.launch.world_size} ranks are started without a backend",
        fix=f"use {decide_backend(case.hardware).init or 'gloo'}",
    )


@case_rule("PS312", Severity.ERROR, source=f"{_DOCS}#backends", covers=("PIT604",))
def backend_has_no_such_name(case: Case) -> Hit | None:
    """A backend's name must be one that torch knows.

    torch only warns about an unknown name, and fails later with an assertion. Plugins may register more.
    """
    names = [part.split(":")[-1] for part in case.launch.backend.split(",") if part]
    unknown = [name for name in names if name not in _KNOWN]
    if not unknown:
        return None
    return Hit(
        message=f"backend {', '.join(unknown)} is none of {', '.join(_KNOWN)}",
        fix=f"use {decide_backend(case.hardware).init or 'gloo'}",
    )


@case_rule("PS313", Severity.WARNING, source=f"{_DOCS}#backends")
def backend_is_not_for_training(case: Case) -> Hit | None:
    """Some backends are not for training by default.

    UCC is marked for removal in torch's own source. The fake backend checks meshes in one process and
    computes nothing.
    """
    names = [part.split(":")[-1] for part in case.launch.backend.split(",")]
    found = [name for name in names if name in _SPECIAL]
    if not found:
        return None
    return Hit(
        message=f"backend {found[0]} {_SPECIAL[found[0]]}",
        fix=f"use {decide_backend(case.hardware).init or 'gloo'}",
    )


def _documented(case: Case) -> str:
    backend = decide_backend(case.hardware).backend
    return backend.value if backend else Backend.GLOO.value
