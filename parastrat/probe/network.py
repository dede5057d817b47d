"""What joins a host to others: its network interfaces and RDMA cards, as sysfs shows them."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.hardware import Network, NetworkKind
from parastrat.probe.files import entries, followed, read_int, read_text
from parastrat.probe.host import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

_AMAZON = "0x1d0f"
#: /usr/include/linux/if_arp.h
_ETHERNET, _INFINIBAND, _LOOPBACK = 1, 32, 772
#: interfaces of container and VM bridges; they lead nowhere outside
_INNER = (
    "docker",
    "veth",
    "br-",
    "virbr",
    "cni",
    "flannel",
    "cali",
    "ifb",
    "tap",
    "dummy",
    "lxc",
    "podman",
)
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One port of an RDMA card."""

    name: str
    kind: NetworkKind
    active: bool
    #: None where the driver states none
    bits_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """One network interface of the kernel."""

    name: str
    #: ARP hardware type: 1 Ethernet, 32 InfiniBand, 772 loopback
    type: int | None
    up: bool
    #: has an IPv4 address; None where a recorded host does not say
    addressed: bool | None
    virtual: bool
    wireless: bool
    #: None where the driver states none, as virtual cards do
    bits_per_s: float | None


def read_infiniband(root: Path) -> tuple[Card, ...]:
    """Read the ports of all RDMA cards; empty where the host has no RDMA stack."""
    cards = []
    for link in sorted(entries(root / "sys/class/infiniband"), key=_by_number):
        device = followed(link)
        vendor = read_text(followed(device / "device") / "vendor")
        for port in entries(device / "ports"):
            rate = (read_text(port / "rate") or "").split()
            state = read_text(port / "state") or ""
            cards.append(
                Card(
                    name=device.name,
                    kind=_card_kind(vendor, read_text(port / "link_layer")),
                    active=state.startswith("4"),
                    bits_per_s=float(rate[0]) * 1e9 if rate else None,
                )
            )
    return tuple(cards)


def read_interfaces(root: Path) -> tuple[Interface, ...]:
    """Read all network interfaces but loopback."""
    found = []
    for link in entries(root / "sys/class/net"):
        path = followed(link)
        kind = read_int(path / "type")
        if kind is None or kind == _LOOPBACK:
            continue
        speed = read_int(path / "speed")
        bonded = (path / "bonding").is_dir()
        found.append(
            Interface(
                name=path.name,
                type=kind,
                up=read_text(path / "operstate") == "up",
                addressed=_addressed(path.name, root),
                virtual="virtual" in path.parts and not bonded,
                wireless=(path / "wireless").is_dir() or (path / "phy80211").is_dir(),
                bits_per_s=speed * 1e6 if speed and speed > 0 else None,
            )
        )
    return tuple(found)


def read_default_interface(root: Path) -> str | None:
    """Return the interface of the default route with the lowest metric; None without such a route."""
    defaults = [row for row in _routes(root) if row[1] == row[7] == "00000000"]
    return min(defaults, key=lambda row: int(row[6]))[0] if defaults else None


def read_network(root: Path, *, accelerators: int) -> Network:
    """Read what joins this host to others; what sysfs cannot tell is None.

    Args:
        root: of the host.
        accelerators: of the host. With more active RDMA cards than these, some serve storage, and the
            host's rate into the training network is unknown.
    """
    cards, interfaces = read_infiniband(root), read_interfaces(root)
    reachable = [entry for entry in interfaces if entry.up and not entry.name.startswith(_INNER)]
    over_infiniband = [
        entry for entry in reachable if entry.type == _INFINIBAND and entry.addressed is not False
    ]
    kind = _network_kind(cards, reachable)
    used = [card for card in cards if card.active and card.kind is kind]
    mixed = accelerators > 0 and len(used) > accelerators and kind is not NetworkKind.EFA
    return Network(
        kind=kind,
        node_bits_per_s=None if mixed else _node_rate(kind, used, reachable),
        ipoib=bool(over_infiniband),
        socket_ifname=_socket_interface(
            () if accelerators else over_infiniband, reachable, read_default_interface(root)
        ),
        gpudirect=_gpudirect(root, kind) if accelerators else None,
        compute_hcas=() if mixed else tuple(dict.fromkeys(card.name for card in used)),
    )


def _by_number(path: Path) -> tuple[int, str]:
    """Order ``mlx5_9`` before ``mlx5_10``."""
    return len(path.name), path.name


def _card_kind(vendor: str | None, link_layer: str | None) -> NetworkKind:
    if vendor == _AMAZON:
        return NetworkKind.EFA
    kinds = {"InfiniBand": NetworkKind.INFINIBAND, "Ethernet": NetworkKind.ROCE}
    return kinds.get(link_layer or "", NetworkKind.UNKNOWN)


def _network_kind(cards: Sequence[Card], reachable: Sequence[Interface]) -> NetworkKind:
    """Return the fastest kind at hand; only active ports and interfaces that are up count."""
    active = {card.kind for card in cards if card.active}
    for kind in (NetworkKind.EFA, NetworkKind.INFINIBAND, NetworkKind.ROCE):
        if kind in active:
            return kind
    if any(entry.name.startswith("hsn") for entry in reachable):
        return NetworkKind.SLINGSHOT
    if any(entry.type == _ETHERNET and not entry.virtual and not entry.wireless for entry in reachable):
        return NetworkKind.ETHERNET
    if any(entry.wireless for entry in reachable):
        return NetworkKind.WIFI
    # a container's virtual interface leads to a card of its host that cannot be seen from inside
    return NetworkKind.UNKNOWN if reachable else NetworkKind.NONE


def _node_rate(kind: NetworkKind, used: Sequence[Card], reachable: Sequence[Interface]) -> float | None:
    """Return the host's rate in bits per second, where all its parts are stated."""
    if used:
        return _sum_of_known(card.bits_per_s for card in used)
    if kind is NetworkKind.SLINGSHOT:
        return _sum_of_known(entry.bits_per_s for entry in reachable if entry.name.startswith("hsn"))
    if kind is NetworkKind.ETHERNET:
        rates = [entry.bits_per_s for entry in reachable if entry.type == _ETHERNET and not entry.virtual]
        known = [rate for rate in rates if rate is not None]
        return max(known) if len(known) == len(rates) else None
    return None


def _sum_of_known(rates: Iterable[float | None]) -> float | None:
    stated = list(rates)
    known = [rate for rate in stated if rate is not None]
    return sum(known) if len(known) == len(stated) else None


def _socket_interface(
    over_infiniband: Sequence[Interface], reachable: Sequence[Interface], default: str | None
) -> str | None:
    """Return the interface for sockets; None where there are several and nothing tells them apart.

    It is IP over InfiniBand where sockets carry the data, or the default route's, or the only one.
    """
    if over_infiniband:
        return over_infiniband[0].name
    if default is not None:
        return default
    usable = [entry for entry in reachable if entry.addressed is not False and entry.type == _ETHERNET]
    candidates = [entry for entry in usable if not entry.virtual] or usable
    return candidates[0].name if len(candidates) == 1 else None


def _gpudirect(root: Path, kind: NetworkKind) -> bool | None:
    """Return whether cards can reach device memory; None where only a run's log can tell."""
    if kind in {NetworkKind.INFINIBAND, NetworkKind.ROCE} and (root / "sys/module/nvidia_peermem").is_dir():
        return True
    return None


def _addressed(name: str, root: Path) -> bool | None:
    if root != LIVE:
        routes = _routes(root)
        return any(row[0] == name for row in routes) if routes else None
    import fcntl  # noqa: PLC0415 - Linux and macOS only, and only this machine has addresses to ask for

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return False
    return True


def _routes(root: Path) -> list[list[str]]:
    """Return the IPv4 routes: interface, destination, gateway, flags, refs, use, metric, mask, ..."""
    rows = [line.split() for line in (read_text(root / "proc/net/route") or "").splitlines()[1:]]
    return [row for row in rows if len(row) > 7]
