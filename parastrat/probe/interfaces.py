"""Network interfaces of the kernel, and the one that sockets should use."""

from __future__ import annotations

import re
import socket
import struct
from typing import TYPE_CHECKING

from parastrat.machine import Interface
from parastrat.probe.files import (
    LIVE,
    base,
    entries,
    exists,
    followed,
    is_folder,
    read_int,
    read_text,
    whole,
)
from parastrat.probe.pci import order_of, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

#: /usr/include/linux/if_arp.h
ETHERNET, INFINIBAND, _LOOPBACK = 1, 32, 772
#: how Slingshot's interfaces are named
SLINGSHOT = "hsn"
#: interfaces of container and VM bridges; they lead nowhere outside
_INNER = re.compile(r"(docker|veth|br-|virbr|cni|flannel|cali|ifb|tap|tun|dummy|lxc|podman|kube|nerdctl)")
_SIOCGIFADDR = 0x8915
#: faster than any port; a speed beyond it is a driver's "unknown"
_FASTEST_MBIT = 10_000_000


def read_interfaces(root: Path) -> tuple[Interface, ...]:
    """Read all network interfaces but loopback."""
    found = []
    links = entries(root, "sys/class/net")
    slaves = {name for link in links for name in (read_text(root, f"{link}/bonding/slaves") or "").split()}
    for link in links:
        path = followed(root, link)
        kind = read_int(root, f"{link}/type")
        if path is None or kind is None or kind == _LOOPBACK:
            continue
        name, speed = base(link), read_int(root, f"{link}/speed")
        found.append(
            Interface(
                name=name,
                type=kind,
                up=_is_up(root, link),
                addressed=_addressed(name, root),
                virtual="virtual" in path.split("/") and not is_folder(root, f"{link}/bonding"),
                wireless=is_folder(root, f"{link}/wireless") or is_folder(root, f"{link}/phy80211"),
                bits_per_s=speed * 1e6 if speed and 0 < speed <= _FASTEST_MBIT else None,
                enslaved=exists(root, f"{link}/master") or base(link) in slaves,
                vendor=read_text(root, f"{link}/device/vendor"),
                place=place_of(root, link),
            )
        )
    return tuple(found)


def reachable(interfaces: Sequence[Interface]) -> list[Interface]:
    """Return the interfaces that may lead to other hosts, as the bus numbers them."""
    usable = [entry for entry in interfaces if entry.up and not _INNER.match(entry.name)]
    return sorted(usable, key=lambda entry: (order_of(entry.place), _natural(entry.name)))


def read_default_interface(root: Path) -> str | None:
    """Return the interface of the default route with the lowest metric; None without such a route."""
    defaults = [row for row in _routes(root) if row[1] == row[7] == "00000000"]
    return min(defaults, key=lambda row: whole(row[6]) or 0)[0] if defaults else None


def socket_interface(
    usable: Sequence[Interface], default: str | None, *, on_gpus: bool, rails: set[str]
) -> str | None:
    """Return the interface for sockets; None where there is none.

    Between CPU hosts, whose data goes through sockets, it is IP over InfiniBand where there is any. Else it
    is the default route's, or the first on the bus, as NCCL takes it: Ethernet that is no port of the
    training network, then any Ethernet, then IP over InfiniBand. On Slingshot it is Slingshot's own.

    Args:
        usable: interfaces that are up, in order.
        default: the default route's.
        on_gpus: accelerators carry their own data past sockets.
        rails: interfaces of the training network's cards.
    """
    over_infiniband = [entry for entry in usable if is_ipoib(entry)]
    if over_infiniband and not on_gpus:
        return over_infiniband[0].name
    own = next((entry.name for entry in usable if entry.name.startswith(SLINGSHOT)), None)
    if own is not None or default is not None:
        return own or default
    usable = [
        entry
        for entry in usable
        if entry.type == ETHERNET and entry.addressed is not False and not entry.enslaved
    ]
    ranked = sorted(usable, key=lambda entry: (entry.virtual, entry.name in rails))
    chosen = ranked or over_infiniband
    return chosen[0].name if chosen else None


def is_ipoib(interface: Interface) -> bool:
    """Return whether an interface is IP over InfiniBand, up, with an address unless a record hides it."""
    return interface.type == INFINIBAND and interface.up and interface.addressed is not False


def _is_up(root: Path, link: str) -> bool:
    """Return whether an interface is up; drivers that do not report it may still have a carrier."""
    state = read_text(root, f"{link}/operstate")
    return state == "up" or (state == "unknown" and read_text(root, f"{link}/carrier") == "1")


def _natural(name: str) -> tuple[tuple[int, str], ...]:
    """Order ``eth9`` before ``eth10``."""
    parts = re.findall(r"([0-9]{1,9})|([^0-9]+)", name)
    return tuple((int(digits), "") if digits else (-1, text) for digits, text in parts)


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
    rows = [line.split() for line in (read_text(root, "proc/net/route") or "").splitlines()[1:]]
    return [row for row in rows if len(row) > 7]
