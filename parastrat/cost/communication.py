"""Seconds of collectives over groups that may cross scale-up domains.

Sources: nccl-tests doc/PERFORMANCE.md (bus bandwidth: a ring all-gather or reduce-scatter moves (n-1)/n
of the buffer, an all-reduce twice that). That rings leave a domain through all its members' network cards
at once is how NCCL builds them; the latency terms count hops and are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parastrat.errors import ProfileError

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.hardware import Hardware, Link
    from parastrat.units import Bytes, Numbers, Ranks, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of a cluster as collectives see them inside a training step."""

    scale_up: Link
    scale_out: Link
    #: devices of one scale-up domain
    domain: int
    #: share of the bus bandwidth that is left in a training step
    efficiency: float


def fabric_of(facts: Facts) -> Fabric:
    """Return the cluster's fabric.

    Raises:
        ProfileError: several nodes, and the network between them is unknown.
    """
    hardware = facts.hardware
    spans = hardware.world_size > hardware.scale_up_devices
    if hardware.scale_out is None and spans:
        raise ProfileError(
            f"the network between the {hardware.num_nodes} nodes of {hardware.name} is unknown",
            hint="name a node profile with --on, or a file that states [hardware.scale_out]",
        )
    return Fabric(
        scale_up=_first(hardware.scale_up, hardware.scale_out, hardware),
        scale_out=_first(hardware.scale_out, hardware.scale_up, hardware),
        domain=hardware.scale_up_devices,
        efficiency=facts.stack.network_efficiency,
    )


def _first(link: Link | None, other: Link | None, hardware: Hardware) -> Link:
    found = link or other
    if found is None:
        raise ProfileError(
            f"no link between the devices of {hardware.name} is known",
            hint="name a node profile with --on, or a file that states [hardware.scale_up]",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Groups of ``ranks`` members, neighbours ``stride`` ranks apart; numbers or arrays."""

    ranks: Ranks
    stride: Ranks

    def inside(self, domain: int) -> Numbers:
        """Return the members in one scale-up domain."""
        return np.minimum(np.maximum(domain // self.stride, 1), self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """A collective whose time is linear in its buffer: for each byte of it, and for the hops."""

    byte_s: Seconds
    hops_s: Seconds

    def of(self, payload: Bytes) -> Seconds:
        """Return the time for a buffer."""
        return payload * self.byte_s + self.hops_s


def ring_of(group: Group, fabric: Fabric) -> Ring:
    """Return one all-gather or reduce-scatter of a group, by the bytes of the whole buffer.

    Each domain must take in what its members do not hold, through as many cards as it has members in the
    group; inside, each rank's link carries (n-1)/n of the buffer. The slower of the two decides. One rank
    alone takes no time.
    """
    n, here = group.ranks, group.inside(fabric.domain)
    domains = n / here
    up, out = fabric.scale_up, fabric.scale_out
    within = (n - 1) / (n * up.bytes_per_s * fabric.efficiency) * (here > 1)
    between = (n - here) / (n * here * out.bytes_per_s * fabric.efficiency)
    return Ring(
        byte_s=np.maximum(within, between),
        hops_s=domains * (here - 1) * up.latency_s + (domains - 1) * out.latency_s,
    )


def ring_s(payload: Bytes, group: Group, fabric: Fabric) -> Seconds:
    """Return the time of one all-gather or reduce-scatter of ``payload`` bytes, the whole buffer."""
    return ring_of(group, fabric).of(payload)


def all_reduce_s(payload: Bytes, group: Group, fabric: Fabric) -> Seconds:
    """Return the time of one all-reduce: two rings' traffic.

    Latency is a tree's across domains; inside one, the switch may reduce (``all_reduce_gain``).
    """
    n, here = group.ranks, group.inside(fabric.domain)
    domains = n / here
    up, out = fabric.scale_up, fabric.scale_out
    gain = np.where(domains == 1, up.all_reduce_gain, 1.0)
    within = 2 * (n - 1) / n * payload / (up.bytes_per_s * gain * fabric.efficiency) * (here > 1)
    between = 2 * (n - here) / n * payload / (here * out.bytes_per_s * fabric.efficiency)
    hops = 2 * (here - 1) * up.latency_s + 2 * np.ceil(np.log2(np.maximum(domains, 1))) * out.latency_s
    return np.where(n > 1, np.maximum(within, between) + hops, 0.0)


def all_to_all_s(payload: Bytes, group: Group, fabric: Fabric, copies: Numbers = 1) -> Seconds:
    """Return the time for every rank to send ``payload`` bytes, equally to all members.

    Of messages of which so many ``copies`` go to members at random, one crosses into each domain that has
    any of those: (d - 1) (1 - (1 - 1/d)^copies) of the other d - 1 domains, in the mean.

    The messages start together: measured, 2 to 8 ranks differ by microseconds (nccl-tests in
    ai-dynamo/aiconfigurator @095f58a), so one hop of each kind counts.
    """
    n, here = group.ranks, group.inside(fabric.domain)
    up, out = fabric.scale_up, fabric.scale_out
    within = (here - 1) / n * payload / (up.bytes_per_s * fabric.efficiency)
    domains = n / here
    crossing = (domains - 1) * (1 - (1 - 1 / domains) ** copies) / copies
    between = crossing * payload / (out.bytes_per_s * fabric.efficiency)
    latency = (here > 1) * up.latency_s + (n > here) * out.latency_s
    return np.where(n > 1, np.maximum(within, between) + latency, 0.0)


def send_s(payload: Bytes, stride: Ranks, fabric: Fabric) -> Seconds:
    """Return the time of one message between ranks ``stride`` apart."""
    up, out = fabric.scale_up, fabric.scale_out
    inside = payload / (up.bytes_per_s * fabric.efficiency) + up.latency_s
    across = payload / (out.bytes_per_s * fabric.efficiency) + out.latency_s
    return np.where(stride < fabric.domain, inside, across)
