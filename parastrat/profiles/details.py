"""Names with a detail: a node's profile with another network, as ``dgx-h100@400g-per-node``."""

from __future__ import annotations

import re
from dataclasses import replace

from parastrat.errors import ProfileError
from parastrat.hardware import FigureKind, Hardware, Link, Provenance
from parastrat.units import GB

#: between a node's name and its detail
MARK = "@"
_RATE = re.compile(r"(?P<gbit>[1-9][0-9]{0,5})g-per-node")


def with_detail(hardware: Hardware, detail: str) -> Hardware:
    """Return a cluster whose nodes reach the network at another rate.

    Args:
        hardware: as its profile states it, with the rate of a node into the network.
        detail: what the name adds: ``800g-per-node`` is 800 Gb/s of one node.

    Raises:
        ProfileError: for another detail, or a node whose own rate is unknown.
    """
    stated = _RATE.fullmatch(detail)
    own = hardware.network.node_bits_per_s
    if stated is None or own is None or hardware.scale_out is None:
        raise ProfileError(
            f"{hardware.name}: {detail!r} is no detail of a node",
            hint=f"state a node's rate into the network, in Gb/s: {hardware.name}{MARK}800g-per-node",
        )
    rate = int(stated["gbit"]) * GB
    return replace(
        hardware,
        network=replace(hardware.network, node_bits_per_s=float(rate)),
        scale_out=_scaled(hardware.scale_out, rate / own, detail),
    )


def _scaled(link: Link, factor: float, detail: str) -> Link:
    """Return a link of another rate that reaches the same share of it."""
    provenance = tuple(_restated(entry, detail) for entry in link.provenance)
    return replace(
        link,
        nominal_bytes_per_s=link.nominal_bytes_per_s * factor,
        bytes_per_s=link.bytes_per_s * factor,
        provenance=provenance,
    )


def _restated(entry: Provenance, detail: str) -> Provenance:
    """Return where a figure comes from that was scaled; what no rate is stays as it was."""
    if not entry.field.endswith("bytes_per_s"):
        return entry
    kind = FigureKind.ASSUMED if entry.kind is FigureKind.ASSUMED else FigureKind.DERIVED
    return replace(entry, kind=kind, source=f"scaled to {detail}: {entry.source}")
