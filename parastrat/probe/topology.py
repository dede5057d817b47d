"""How accelerators reach each other and the network's cards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.hardware import FabricKind, NetworkKind, Vendor
from parastrat.machine import PciPath, Topology
from parastrat.probe.interfaces import ETHERNET, SLINGSHOT, reachable
from parastrat.probe.pci import path_between

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from parastrat.machine import Gpu, PciPlace
    from parastrat.probe.network import NetworkFacts

_SELF = "X"
_XGMI = "XGMI"
#: nearest first; links between accelerators come before all of them
_ORDER = tuple(path.value for path in PciPath)


def topology_of(
    gpus: Sequence[Gpu],
    places: Sequence[PciPlace | None],
    fabric: FabricKind | None,
    facts: NetworkFacts,
    numa_nodes: int | None,
) -> Topology:
    """Return the paths between accelerators, and from each to the cards of the training network."""
    cards = _rails(facts)
    return Topology(
        gpu_gpu=tuple(
            tuple(
                _SELF if one == other else _between(gpus, places, fabric, (one, other), numa_nodes)
                for other in range(len(gpus))
            )
            for one in range(len(gpus))
        ),
        gpu_card=tuple(
            tuple(_written(path_between(place, card, numa_nodes)) for card in cards.values())
            for place in places
        ),
        cards=tuple(cards),
    )


def worst_gpu_path(topology: Topology) -> str | None:
    """Return the longest path between two accelerators; None where it is unknown, xGMI, or there is one.

    A ring passes every neighbour, so the longest path sets its pace. Of NVLinks, the fewest count.
    """
    paths = [path for row in topology.gpu_gpu for path in row if path != _SELF]
    if not paths or None in paths:
        return None
    worst = max(paths, key=_rank)
    return None if worst == _XGMI else worst


def card_path(topology: Topology) -> str | None:
    """Return the longest of the paths from each card to its nearest accelerator; None where unknown."""
    nearest = []
    for column in zip(*topology.gpu_card, strict=True):
        known = [path for path in column if path is not None]
        if not known:
            return None
        nearest.append(min(known, key=_rank))
    return max(nearest, key=_rank) if nearest else None


def _rank(path: str | None) -> tuple[int, int]:
    """Order paths from the nearest: many NVLinks, fewer, xGMI, then PCIe."""
    text = path or ""
    if text in _ORDER:
        return 2 + _ORDER.index(text), 0
    return (0, -int(text[2:])) if text.startswith("NV") else (1, 0)


def _rails(facts: NetworkFacts) -> dict[str, PciPlace | None]:
    """Return the cards of the training network: RDMA cards, or interfaces where it has none."""
    used = set(facts.network.compute_hcas)
    if used:
        return {card.name: card.place for card in facts.cards if card.name in used}
    usable = [entry for entry in reachable(facts.interfaces) if not entry.virtual and not entry.enslaved]
    if facts.network.kind is NetworkKind.SLINGSHOT:
        return {entry.name: entry.place for entry in usable if entry.name.startswith(SLINGSHOT)}
    if facts.network.kind not in {NetworkKind.ETHERNET, NetworkKind.TCPX}:
        return {}
    return {entry.name: entry.place for entry in usable if entry.type == ETHERNET and not entry.wireless}


def _between(
    gpus: Sequence[Gpu],
    places: Sequence[PciPlace | None],
    fabric: FabricKind | None,
    pair: tuple[int, int],
    numa_nodes: int | None,
) -> str | None:
    one, other = gpus[pair[0]], gpus[pair[1]]
    if not (one.mig or other.mig):
        linked = _linked(one, other, fabric, len(gpus))
        if linked is not None:
            return linked
    return _written(path_between(places[pair[0]], places[pair[1]], numa_nodes))


def _linked(one: Gpu, other: Gpu, fabric: FabricKind | None, count: int) -> str | None:
    """Return the links between two accelerators; None where they have none, or it is not known how many."""
    links = min(one.nvlinks or 0, other.nvlinks or 0)
    if not links:
        return None
    if fabric in {FabricKind.NVSWITCH, FabricKind.NVLINK_DOMAIN}:
        return f"NV{links}"
    if one.peers:
        direct = next((number for address, number in one.peers if address == other.bus_id), 0)
        if not direct:
            return None
        return _XGMI if one.vendor is Vendor.AMD else f"NV{direct}"
    on_board = re.search(r"SXM|GH200", one.name or "") is not None
    if one.nvlink_remote == "GPU" and (count == 2 or (on_board and links % (count - 1) == 0)):
        # boards of four join all; bridges between cards join pairs, and nothing tells which
        return f"NV{links // (count - 1)}"
    return None


def _written(path: PciPath | None) -> str | None:
    return None if path is None else path.value


def cells(topology: Topology) -> Iterable[str | None]:
    """Yield every path."""
    for rows in (topology.gpu_gpu, topology.gpu_card):
        for row in rows:
            yield from row
