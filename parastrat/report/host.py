"""A probed host in plain words: what was found, what is unknown, what harms, what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.hardware import FabricKind, NetworkKind, Vendor
from parastrat.machine import GpuDirect
from parastrat.report.numbers import size
from parastrat.report.text import Line, Tone, heading, labelled, line, rendered, wrapped
from parastrat.report.topology import topology_lines
from parastrat.report.unknown import unknown_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from parastrat.machine import Gpu, Machine
    from parastrat.report.text import Paper
    from parastrat.rules.backend import BackendDecision

_FABRICS = {
    FabricKind.NVSWITCH: "NVSwitch",
    FabricKind.NVLINK: "NVLink, directly",
    FabricKind.NVLINK_DOMAIN: "an NVLink domain that spans hosts",
    FabricKind.XGMI: "xGMI (Infinity Fabric)",
    FabricKind.PCIE: "PCIe alone",
    FabricKind.XE_LINK: "Xe Link",
    FabricKind.ROCE: "their own Ethernet ports",
    FabricKind.NONE: "nothing",
}
_NETWORKS = {
    NetworkKind.INFINIBAND: "InfiniBand",
    NetworkKind.ROCE: "RoCE (RDMA over Ethernet)",
    NetworkKind.EFA: "AWS EFA",
    NetworkKind.SLINGSHOT: "Slingshot",
    NetworkKind.TCPX: "Google's GPUDirect-TCPX",
    NetworkKind.ETHERNET: "Ethernet",
    NetworkKind.WIFI: "wifi: for tests only",
    NetworkKind.NONE: "none that leads to other hosts",
    NetworkKind.UNKNOWN: "unknown: a virtual interface hides the host's card",
}
_GPUDIRECTS = {
    GpuDirect.NVIDIA_PEERMEM: "nvidia_peermem is loaded: cards should read and write GPU memory (GDRDMA in "
    "NCCL's log proves it)",
    GpuDirect.DMABUF: "an open driver and a kernel with dma-buf: cards should read and write GPU memory "
    "(GDRDMA in NCCL's log proves it)",
    GpuDirect.EFA: "EFA reads and writes GPU memory",
    GpuDirect.NONE: "no: data goes through the host's memory",
    GpuDirect.UNKNOWN: "unknown",
}

_LABEL = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """What a report of a host is made of."""

    machine: Machine
    decision: BackendDecision
    #: package that NCCL needs on this network
    plugin: str | None
    #: what joins the accelerators, where their profile is asked too
    fabric: FabricKind | None
    #: why no plan can be made for this host; None: one can
    no_hardware: str | None
    next_commands: tuple[str, ...]


def host_text(report: HostReport, paper: Paper) -> str:
    """Return the whole answer of ``probe``."""
    machine = report.machine
    lines: list[Line] = [*wrapped(_headline(machine), paper, tone=Tone.STRONG)]
    if machine.gpus:
        lines += [*heading("Accelerators", paper), *_accelerators(report, paper)]
    lines += [*heading("Network", paper), *_network(machine, paper)]
    lines += [*heading("Backend between such hosts", paper), *_backend(report, paper)]
    lines += [*heading("Host and limits", paper), *_limits(machine, paper)]
    harmful = [hazard for hazard in machine.hazards if not hazard.is_gap]
    matrices = topology_lines(machine.topology, paper)
    if matrices:
        lines += [*heading("Topology", paper), *matrices]
    lines += _listed("Watch out", [(f"{h.what}: {h.why}", h.fix) for h in harmful], paper)
    lines += _listed("Unknown", unknown_facts(machine), paper)
    if report.no_hardware is not None:
        lines += [*heading("No plan for this host", paper), *wrapped(report.no_hardware, paper, first="  ")]
    lines += heading("Next", paper)
    lines += [line(f"  {command}") for command in report.next_commands]
    return rendered(lines, paper)


def _headline(machine: Machine) -> str:
    host = machine.host
    where = "This container" if host.container else "This host"
    if machine.trouble is not None:
        return f"{where}: accelerators that do not answer"
    if machine.gpus:
        return f"{where}: {_kinds(machine.gpus)}"
    cores = "an unknown number of" if host.cores is None else f"{host.cores:,}"
    return f"{where}: no accelerators, {cores} cores"


def _kinds(gpus: Sequence[Gpu]) -> str:
    names = [gpu.name or f"{gpu.vendor.value} accelerator that does not say what it is" for gpu in gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _accelerators(report: HostReport, paper: Paper) -> list[Line]:
    machine = report.machine
    first = machine.gpus[0]
    memory = "unknown memory" if first.memory_bytes is None else f"{size(first.memory_bytes)} each"
    target = first.compute_capability
    if target is not None:
        memory += f", compute capability {target}" if first.vendor is Vendor.NVIDIA else f", {target}"
    links = ""
    if first.nvlinks and report.fabric not in {FabricKind.NONE, FabricKind.PCIE}:
        kind = "xGMI links" if first.vendor is Vendor.AMD else "NVLinks"
        links = f", {first.nvlinks} {kind} each"
    domain = machine.scale_up_domain
    group = f": groups of {domain}" if domain and domain > 1 else ""
    joined = "unknown" if report.fabric is None else _FABRICS[report.fabric]
    return [
        *_labelled("found", f"{_kinds(machine.gpus)}, {memory}", paper),
        *_labelled("joined by", f"{joined}{links}{group}", paper),
    ]


def _network(machine: Machine, paper: Paper) -> list[Line]:
    network = machine.network
    rate = "at an unknown rate" if network.node_bits_per_s is None else _gbit(network.node_bits_per_s)
    if machine.gpus and network.node_bits_per_s is not None:
        rate += f" a host, {_gbit(network.node_bits_per_s / len(machine.gpus))} an accelerator"
    is_there = network.kind not in {NetworkKind.NONE, NetworkKind.WIFI, NetworkKind.UNKNOWN}
    lines = _labelled("kind", f"{_NETWORKS[network.kind]}{f', {rate}' if is_there else ''}", paper)
    if network.compute_hcas:
        cards = f"{len(network.compute_hcas)} for training: {', '.join(network.compute_hcas)}"
        lines += _labelled("cards", cards, paper)
    if machine.excluded_hcas:
        others = ", ".join(machine.excluded_hcas)
        lines += _labelled("", f"left out (storage, management or down): {others}", paper)
    if machine.gpus:
        lines += _labelled("GPUDirect", _GPUDIRECTS[machine.gdr], paper)
    name = network.socket_ifname or "none"
    if machine.socket_is_assumed:
        name += " (assumed: others are up too, and no default route says which)"
    lines += _labelled("sockets", name, paper)
    return lines + _labelled("IPoIB", {True: "yes", False: "no", None: "unknown"}[network.ipoib], paper)


def _backend(report: HostReport, paper: Paper) -> list[Line]:
    decision = report.decision
    name = decision.backend.value if decision.backend else "none"
    lines = _labelled("use", f"{name}: {decision.reason}", paper)
    if decision.fallback:
        lines += _labelled("if it fails", decision.fallback, paper)
    for option in decision.options:
        lines += _labelled("or", option, paper)
    if report.plugin is not None:
        needs = f"{report.plugin}; without it NCCL uses sockets, and says so in its log alone"
        lines += _labelled("needs", needs, paper)
    for key, value in decision.env.items():
        lines += _labelled("set", f"{key}={value}", paper)
    return lines


def _limits(machine: Machine, paper: Paper) -> list[Line]:
    host = machine.host
    locked = "unknown"
    if host.memlock_unlimited is not None:
        locked = "unlimited" if host.memlock_unlimited else _bytes(host.memlock_bytes)
    values = {
        "cores": _of(host.cores, host.cores_online, str),
        "memory": _of(host.memory_bytes, host.memory_total_bytes, size),
        "/dev/shm": _bytes(host.shm_bytes),  # noqa: S108 - a name to read
        "memlock": locked,
        "open files": "unknown or unlimited" if host.open_files is None else f"{host.open_files:,}",
        "NUMA nodes": "unknown" if host.numa_nodes is None else str(host.numa_nodes),
    }
    if host.cloud is not None:
        values["cloud"] = host.cloud
    return [row for label, text in values.items() for row in _labelled(label, text, paper)]


def _of(allowed: int | None, whole: int | None, say: Callable[[int], str]) -> str:
    if allowed is None:
        return "unknown"
    limited = f" of {say(whole)}, by a limit of its group" if whole is not None and whole > allowed else ""
    return f"{say(allowed)}{limited}"


def _labelled(label: str, text: str, paper: Paper) -> list[Line]:
    return labelled(label, text, paper, width=_LABEL)


def _bytes(count: int | None) -> str:
    return "unknown" if count is None else size(count)


def _gbit(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:,.4g} Gbit/s"


def _listed(title: str, entries: Sequence[tuple[str, str]], paper: Paper) -> list[Line]:
    if not entries:
        return []
    lines = heading(title, paper)
    for what, remedy in entries:
        lines += wrapped(what, paper, first="  - ", tone=Tone.CAUTION)
        lines += wrapped(remedy, paper, first="    -> ")
    return lines
