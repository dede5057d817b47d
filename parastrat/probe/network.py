"""What joins a host to others, out of its interfaces and RDMA cards."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.errors import ProfileError
from parastrat.hardware import Network, NetworkKind, Vendor
from parastrat.machine import GpuDirect
from parastrat.probe.files import entries, is_folder, read_text
from parastrat.probe.interfaces import (
    ETHERNET,
    SLINGSHOT,
    is_ipoib,
    reachable,
    read_default_interface,
    read_interfaces,
    socket_interface,
)
from parastrat.probe.limits import read_cloud
from parastrat.probe.pci import place_at
from parastrat.probe.rdma import compute_cards, gid_index, is_near, read_infiniband
from parastrat.profiles import load_hardware

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from parastrat.machine import Card, Gpu, Interface, PciPlace

__all__ = ["NetworkFacts", "read_default_interface", "read_infiniband", "read_interfaces", "read_network"]

#: Google's virtual card
_GVNIC = "0x1ae0"
#: A3 High has a card for the host and four for its GPUs, A3 Mega one and eight
_TCPX_CARDS = 5
#: the EFA driver says this of each generation; only newer drivers ask the device
_EFA_DEFAULT_BITS_PER_S = 100e9
#: generations that do have it: before p5en (aws-ofi-nccl src/platform-aws.c; clusters.csv)
_EFA_OF_DEFAULT_RATE = frozenset({"0xefa0", "0xefa1", "0xefa2"})
_KERNEL_WITH_DMABUF = (5, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """A host's network with the cards and interfaces that it was told from."""

    network: Network
    cards: tuple[Card, ...]
    interfaces: tuple[Interface, ...]
    #: RDMA cards of other networks; None where nothing tells them apart
    excluded_hcas: tuple[str, ...] | None
    gdr: GpuDirect
    roce_v2_gid_index: int | None
    #: some of several interfaces was taken, because the record has no routes
    socket_is_assumed: bool


def read_network(root: Path, gpus: Sequence[Gpu] = ()) -> NetworkFacts:
    """Read what joins this host to others; what sysfs cannot tell is None.

    Args:
        root: of the host.
        gpus: its accelerators: cards near them are the training network's.
    """
    cards, interfaces = read_infiniband(root), read_interfaces(root)
    places = [place_at(root, gpu.bus_id) for gpu in gpus]
    usable = reachable(interfaces)
    kind = _network_kind(root, cards, usable, places)
    used = compute_cards(cards, kind, places)
    rails = {card.interface for card in used or () if card.interface}
    names = None if used is None else tuple(dict.fromkeys(card.name for card in used))
    default = read_default_interface(root)
    gdr = _gpudirect(root, kind, gpus, used or ())
    chosen = socket_interface(usable, default, on_gpus=bool(gpus), rails=rails)
    return NetworkFacts(
        network=Network(
            kind=kind,
            node_bits_per_s=_node_rate(root, kind, used, usable),
            ipoib=any(is_ipoib(entry) for entry in usable),
            socket_ifname=chosen,
            gpudirect={GpuDirect.NONE: False, GpuDirect.UNKNOWN: None}.get(gdr, True) if gpus else None,
            compute_hcas=names or (),
        ),
        cards=cards,
        interfaces=interfaces,
        excluded_hcas=None
        if names is None
        else tuple(dict.fromkeys(card.name for card in cards if card.name not in names)),
        gdr=gdr,
        roce_v2_gid_index=gid_index(used or ()) if kind is NetworkKind.ROCE else None,
        socket_is_assumed=default is None and _has_equals(chosen, usable, rails),
    )


def _has_equals(chosen: str | None, usable: Sequence[Interface], rails: set[str]) -> bool:
    """Return whether other interfaces could serve sockets as well as the one that was chosen."""
    equals = [
        entry.name
        for entry in usable
        if entry.type == ETHERNET and not entry.virtual and not entry.enslaved and entry.name not in rails
    ]
    return chosen in equals and len(equals) > 1


def _network_kind(
    root: Path, cards: Sequence[Card], usable: Sequence[Interface], gpus: Sequence[PciPlace | None]
) -> NetworkKind:
    """Return the kind of the training network; only active ports and interfaces that are up count."""
    active = [card for card in cards if card.active]
    near = {card.kind for card in active if any(is_near(card, gpu) for gpu in gpus)}
    everywhere = {card.kind for card in active}
    order = (NetworkKind.EFA, NetworkKind.INFINIBAND, NetworkKind.ROCE)
    # InfiniBand may be storage's alone, where the cards beside the accelerators speak Ethernet
    for kinds in (near, everywhere):
        found = next((kind for kind in order if kind in kinds), None)
        if found is not None and (found is not NetworkKind.ROCE or not _is_slingshot(root, usable)):
            return found
    if _is_slingshot(root, usable):
        return NetworkKind.SLINGSHOT
    if gpus and len(_google_cards(usable)) >= _TCPX_CARDS:
        return NetworkKind.TCPX
    if any(entry.type == ETHERNET and not entry.virtual and not entry.wireless for entry in usable):
        return NetworkKind.ETHERNET
    if any(entry.wireless for entry in usable):
        return NetworkKind.WIFI
    # a container's virtual interface leads to a card of its host that cannot be seen from inside
    return NetworkKind.UNKNOWN if usable else NetworkKind.NONE


def _is_slingshot(root: Path, usable: Sequence[Interface]) -> bool:
    return any(entry.name.startswith(SLINGSHOT) for entry in usable) or bool(entries(root, "sys/class/cxi"))


def _google_cards(usable: Sequence[Interface]) -> list[Interface]:
    return [entry for entry in usable if entry.vendor == _GVNIC]


def _node_rate(
    root: Path, kind: NetworkKind, used: Sequence[Card] | None, usable: Sequence[Interface]
) -> float | None:
    """Return the host's rate in bits per second, where all its parts are stated."""
    if kind is NetworkKind.EFA:
        return _efa_rate(root, used or ())
    if used is None or used:
        return _sum_of_known(card.bits_per_s for card in used) if used else None
    if kind is NetworkKind.SLINGSHOT:
        rails = [entry.bits_per_s for entry in usable if entry.name.startswith(SLINGSHOT)]
        return _sum_of_known(rails) if rails else None
    if kind is NetworkKind.TCPX:
        # the first serves the host
        return _sum_of_known(entry.bits_per_s for entry in _google_cards(usable)[1:])
    if kind is NetworkKind.ETHERNET:
        rates = [
            entry.bits_per_s
            for entry in usable
            if entry.type == ETHERNET and not (entry.virtual or entry.enslaved or entry.wireless)
        ]
        known = [rate for rate in rates if rate is not None]
        return max(known) if len(known) == len(rates) and known else None
    return None


def _efa_rate(root: Path, cards: Sequence[Card]) -> float | None:
    """Return what the cards state, or, where the driver states its default, what the instance has."""
    rates = {card.bits_per_s for card in cards}
    stated = rates - {_EFA_DEFAULT_BITS_PER_S}
    if stated or all(card.device_id in _EFA_OF_DEFAULT_RATE for card in cards):
        return _sum_of_known(card.bits_per_s for card in cards)
    instance = (read_cloud(root) or "").removeprefix("aws:")
    try:
        return load_hardware(instance).network.node_bits_per_s if instance else None
    except ProfileError:
        return None


def _sum_of_known(rates: Iterable[float | None]) -> float | None:
    stated = list(rates)
    known = [rate for rate in stated if rate is not None]
    return sum(known) if len(known) == len(stated) else None


def _gpudirect(root: Path, kind: NetworkKind, gpus: Sequence[Gpu], used: Sequence[Card]) -> GpuDirect:
    """Return what lets cards reach device memory; only a run's log proves that they do.

    Source: NCCL 2.30.7 src/transport/net_ib; for EFA, generations from p4d on (AWS's EFA guide).
    """
    if not gpus or kind in {NetworkKind.ETHERNET, NetworkKind.WIFI, NetworkKind.NONE}:
        return GpuDirect.NONE
    if kind is NetworkKind.EFA:
        first = any(card.device_id == "0xefa0" for card in used)
        return GpuDirect.UNKNOWN if first else GpuDirect.EFA
    if kind not in {NetworkKind.INFINIBAND, NetworkKind.ROCE} or gpus[0].vendor is not Vendor.NVIDIA:
        return GpuDirect.UNKNOWN
    peers = entries(root, "sys/kernel/mm/memory_peers")
    if is_folder(root, "sys/module/nvidia_peermem") or any("/nv_mem" in peer for peer in peers):
        return GpuDirect.NVIDIA_PEERMEM
    driver = read_text(root, "proc/driver/nvidia/version")
    kernel = _kernel(root)
    if driver is None or kernel is None:
        return GpuDirect.UNKNOWN
    has_dmabuf = "Open Kernel Module" in driver and kernel >= _KERNEL_WITH_DMABUF
    return GpuDirect.DMABUF if has_dmabuf else GpuDirect.NONE


def _kernel(root: Path) -> tuple[int, int] | None:
    text = read_text(root, "proc/sys/kernel/osrelease") or read_text(root, "proc/version") or ""
    found = re.search(r"\b([0-9]{1,3})\.([0-9]{1,4})\.", text)
    return (int(found[1]), int(found[2])) if found else None
