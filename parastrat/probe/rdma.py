"""RDMA cards: their ports as sysfs shows them, and which of them are the training network's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.hardware import NetworkKind
from parastrat.machine import Card, PciPath
from parastrat.probe.files import base, entries, followed, read_text
from parastrat.probe.pci import path_between, place_of, read_width

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from parastrat.machine import PciPlace

_AMAZON, _EFA = "0x1d0f", "0xefa"
#: of node_type; iWARP is Ethernet too, and nothing that NCCL drives
_IWARP = "4"
_OTHER = NetworkKind.UNKNOWN
_LAYERS = {"InfiniBand": NetworkKind.INFINIBAND, "Ethernet": NetworkKind.ROCE}
#: ports of one card, and addresses of one port; drivers have at most 2 and 256
_MOST_PORTS, _MOST_ADDRESSES = 8, 256
_NEAR = (PciPath.PIX, PciPath.PXB)
_LINK_LOCAL, _IPV4 = "fe80:", "0000:0000:0000:0000:0000:ffff:"


def read_infiniband(root: Path) -> tuple[Card, ...]:
    """Read the ports of all RDMA cards; empty where the host has no RDMA stack."""
    cards: list[Card] = []
    for link in sorted(entries(root, "sys/class/infiniband"), key=lambda path: (len(path), path)):
        device = followed(root, link)
        if device is None:
            continue
        place = place_of(root, device)
        vendor, identity = (read_text(root, f"{link}/device/{name}") for name in ("vendor", "device"))
        nets = entries(root, f"{link}/device/net")
        width, width_max = read_width(root, place)
        kind = _kind(vendor, identity, read_text(root, f"{link}/node_type"), device)
        cards += (
            Card(
                name=base(link),
                kind=kind or _LAYERS.get(read_text(root, f"{port}/link_layer") or "", _OTHER),
                active=(read_text(root, f"{port}/state") or "").startswith("4"),
                bits_per_s=_rate(read_text(root, f"{port}/rate")),
                place=place,
                interface=base(nets[0]) if nets else None,
                roce_v2_gid=_routable_gid(root, port),
                device_id=identity,
                pcie_width=width,
                pcie_width_max=width_max,
            )
            for port in entries(root, f"{link}/ports")[:_MOST_PORTS]
        )
    return tuple(cards)


def compute_cards(
    cards: Sequence[Card], kind: NetworkKind, gpus: Sequence[PciPlace | None]
) -> tuple[Card, ...] | None:
    """Return the ports that carry training; None where nothing tells them from storage's.

    On hosts with accelerators: those that share a switch with one, if each accelerator has such a card;
    else the fastest of the kind, if they are no more than the accelerators. Ports of RoCE without an
    address that can be routed carry no training where others have one.

    Args:
        cards: all ports.
        kind: of the network.
        gpus: places of the accelerators; empty on CPU hosts.
    """
    used = [card for card in cards if card.active and card.kind is kind]
    routable = [card for card in used if card.roce_v2_gid is not None]
    if kind is NetworkKind.ROCE and routable:
        used = routable
    if not gpus:
        return tuple(used)
    near = [card for card in used if any(is_near(card, gpu) for gpu in gpus)]
    if near and all(any(is_near(card, gpu) for card in near) for gpu in gpus):
        return tuple(near)
    fastest = max((card.bits_per_s or 0 for card in used), default=0)
    used = [card for card in used if card.bits_per_s in (fastest, None)]
    # EFA serves nothing but such jobs, with several cards a GPU
    return tuple(used) if len(used) <= len(gpus) or kind is NetworkKind.EFA else None


def is_near(card: Card, gpu: PciPlace | None) -> bool:
    """Return whether only switches lie between a card and an accelerator."""
    return path_between(card.place, gpu, None) in _NEAR


def gid_index(cards: Sequence[Card]) -> int | None:
    """Return the index of the routable RoCE v2 address where all cards have it at the same."""
    found = {card.roce_v2_gid for card in cards}
    return found.pop() if len(found) == 1 else None


def _kind(vendor: str | None, identity: str | None, node_type: str | None, path: str) -> NetworkKind | None:
    """Return the kind of a card's ports; None where each port's link layer says it."""
    if vendor == _AMAZON:
        return NetworkKind.EFA if (identity or _EFA).startswith(_EFA) else _OTHER
    # RDMA in software (rxe, siw) runs on a network interface, which is counted itself
    is_software = "virtual" in path.split("/")
    return _OTHER if is_software or (node_type or "").startswith(_IWARP) else None


def _rate(text: str | None) -> float | None:
    """Return bits per second of a rate such as ``2.5 Gb/sec (1X SDR)``; None where none is stated."""
    stated = re.match(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) Gb/sec", text or "")
    return float(stated[1]) * 1e9 if stated and float(stated[1]) > 0 else None


def _routable_gid(root: Path, port: str) -> int | None:
    """Return the index of the first RoCE v2 address on IPv4, or else of any that leaves the link.

    NCCL chooses alike (2.21 and later): version 2, IPv4 unless NCCL_IB_ADDR_FAMILY says otherwise.
    """
    found: list[int] = []
    for entry in sorted(
        entries(root, f"{port}/gids")[:_MOST_ADDRESSES], key=lambda path: (len(path), path)
    ):
        index, address = base(entry), read_text(root, entry) or ""
        is_used = address.strip("0:") and not address.startswith(_LINK_LOCAL)
        if (
            is_used
            and index.isdecimal()
            and read_text(root, f"{port}/gid_attrs/types/{index}") == "RoCE v2"
        ):
            if address.startswith(_IPV4):
                return int(index)
            found.append(int(index))
    return found[0] if found else None
