"""Seconds of collectives over groups that may cross scale-up domains.

Inside a domain a link's curves tell what comes on top of the bytes, where somebody fitted them
(``profiles/collectives``), else hops of its latency.

Sources: nccl-tests doc/PERFORMANCE.md (bus bandwidth: a ring all-gather or reduce-scatter moves (n-1)/n
of the buffer, an all-reduce twice that). That rings leave a domain through all its members' network cards
at once is how NCCL builds them; the latency terms count hops and are ours. That switches reduce inside the
domains of a larger all-reduce as well: NCCL 2.18, release notes, NVLSTree; two p5.48xlarge reach 487 GB/s
of bus bandwidth over links that gather at 362 (benchmarks/collectives.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parastrat.errors import ProfileError
from parastrat.hardware import CollectiveCurve, CollectiveCurves, DeviceType
from parastrat.units import MIB

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.hardware import Hardware, Link
    from parastrat.units import Bytes, Numbers, Ranks, Seconds

#: what NCCL keeps of a message in flight, for each channel: NCCL_BUFFSIZE, by default 4 MiB
#: (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-buffsize); RCCL as well
_BUFFER = 4 * MIB
#: buffers' worth of a message at which half of one is in flight: measured, p4de.24xlarge and p5.48xlarge
_HALF_FILLED_BY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """The links of a cluster as collectives see them inside a training step."""

    scale_up: Link
    scale_out: Link
    #: devices of one scale-up domain
    domain: int
    #: share of the bus bandwidth that is left in a training step
    efficiency: float
    #: of a reduction between domains what fills before anything comes out, at a card's rate
    buffer_bytes: Bytes = 0.0

    @property
    def curves(self) -> CollectiveCurves:
        """What collectives inside a domain take on top of their bytes."""
        hop_s = self.scale_up.latency_s
        return self.scale_up.curves or CollectiveCurves(
            gather=CollectiveCurve(start_s=0.0, hop_s=hop_s),
            reduce=CollectiveCurve(start_s=0.0, hop_s=2 * hop_s),
            exchange=CollectiveCurve(start_s=hop_s, hop_s=0.0),
        )


def fabric_of(facts: Facts) -> Fabric:
    """Return the cluster's fabric inside a training step.

    Raises:
        ProfileError: several nodes, and the network between them is unknown.
    """
    return fabric_between(facts.hardware, facts.stack.network_efficiency)


def fabric_between(hardware: Hardware, efficiency: float = 1.0) -> Fabric:
    """Return a cluster's fabric; by default of idle devices.

    Raises:
        ProfileError: several nodes, and the network between them is unknown.
    """
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
        efficiency=efficiency,
        # NCCL's and RCCL's; Gloo, which hosts use, sends what it has, and of others nothing is known
        buffer_bytes=_BUFFER if hardware.device.type is DeviceType.CUDA else 0.0,
    )


def _first(link: Link | None, other: Link | None, hardware: Hardware) -> Link:
    found = link or other
    if found is None:
        raise ProfileError(
            f"no link between the devices of {hardware.name} is known",
            hint="name a node profile with --on, or a file that states [hardware.scale_up]",
        )
    return found


def _reached(curve: CollectiveCurve, here: Numbers) -> Numbers:
    """Return the share of a link's rate that so many ranks of a domain reach."""
    if curve.shares == (1.0, 1.0, 1.0):
        return 1.0
    # numpy's does not say what it returns
    return np.interp(np.log2(here), (1.0, 2.0, 3.0), curve.shares)


def _ramp_s(curve: CollectiveCurve, moved: Bytes) -> Seconds:
    return curve.ramp_s * moved / (moved + curve.ramp_bytes)


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
    alone takes no time. The buffer is taken to be large, as units of parameters are: the whole ramp counts.
    """
    n, here = group.ranks, group.inside(fabric.domain)
    domains, curve = n / here, fabric.curves.gather
    up, out = fabric.scale_up, fabric.scale_out
    rate = up.bytes_per_s * _reached(curve, here)
    within = (n - 1) / (n * rate * fabric.efficiency) * (here > 1)
    between = (n - here) / (n * here * out.bytes_per_s * fabric.efficiency)
    begins = (here > 1) * (curve.start_s + curve.ramp_s)
    return Ring(
        byte_s=np.maximum(within, between),
        hops_s=begins + domains * (here - 1) * curve.hop_s + (domains - 1) * out.latency_s,
    )


def ring_s(payload: Bytes, group: Group, fabric: Fabric) -> Seconds:
    """Return the time of one all-gather or reduce-scatter of ``payload`` bytes, the whole buffer."""
    n, curve = group.ranks, fabric.curves.gather
    spared = curve.ramp_s - _ramp_s(curve, (n - 1) / n * payload)
    return ring_of(group, fabric).of(payload) - spared * (group.inside(fabric.domain) > 1)


def all_reduce_s(payload: Bytes, group: Group, fabric: Fabric) -> Seconds:
    """Return the time of one all-reduce: two rings' traffic.

    Latency is a tree's across domains, beside which the pipeline of a larger message has to fill; inside
    one the switch may reduce (``all_reduce_gain``).
    """
    n, here = group.ranks, group.inside(fabric.domain)
    domains, curve = n / here, fabric.curves.reduce
    up, out = fabric.scale_up, fabric.scale_out
    moved = 2 * (n - 1) / n * payload / up.all_reduce_gain
    within = moved / (up.bytes_per_s * _reached(curve, here) * fabric.efficiency) * (here > 1)
    between = 2 * (n - here) / n * payload / (here * out.bytes_per_s * fabric.efficiency)
    begins = (here > 1) * (curve.start_s + _ramp_s(curve, moved)) + (domains > 1) * _fill_s(payload, fabric)
    hops = (here - 1) * curve.hop_s + 2 * np.ceil(np.log2(np.maximum(domains, 1))) * out.latency_s
    return np.where(n > 1, np.maximum(within, between) + begins + hops, 0.0)


def _fill_s(payload: Bytes, fabric: Fabric) -> Seconds:
    """Return how long a message between domains takes until what is in flight of it comes out."""
    buffer = fabric.buffer_bytes
    return buffer / fabric.scale_out.bytes_per_s * payload / (payload + _HALF_FILLED_BY * _BUFFER)


def all_to_all_s(payload: Bytes, group: Group, fabric: Fabric, copies: Numbers = 1) -> Seconds:
    """Return the time for every rank to send ``payload`` bytes, equally to all members.

    Of messages of which so many ``copies`` go to members at random, one crosses into each domain that has
    any of those: (d - 1) (1 - (1 - 1/d)^copies) of the other d - 1 domains, in the mean. As many go on to
    members there, by the same formula (DeepEP, https://github.com/deepseek-ai/DeepEP: is_token_in_rank).

    The messages start together: measured, 2 to 8 ranks differ by microseconds (nccl-tests in
    ai-dynamo/aiconfigurator @095f58a), so one hop of each kind counts.
    """
    n, here = group.ranks, group.inside(fabric.domain)
    up, out, curve = fabric.scale_up, fabric.scale_out, fabric.curves.exchange
    moved = (here - 1) * (1 - (1 - 1 / n) ** copies) / copies * payload
    within = moved / (up.bytes_per_s * _reached(curve, here) * fabric.efficiency)
    domains = n / here
    crossing = (domains - 1) * (1 - (1 - 1 / domains) ** copies) / copies
    between = crossing * payload / (out.bytes_per_s * fabric.efficiency)
    begins = (here > 1) * (curve.start_s + (here - 1) * curve.hop_s + _ramp_s(curve, moved))
    latency = begins + (n > here) * out.latency_s
    return np.where(n > 1, np.maximum(within, between) + latency, 0.0)


def send_s(payload: Bytes, stride: Ranks, fabric: Fabric) -> Seconds:
    """Return the time of one message between ranks ``stride`` apart."""
    inside, across = _sends_s(payload, fabric)
    return np.where(stride < fabric.domain, inside, across)


def ring_send_s(payload: Bytes, group: Group, fabric: Fabric) -> Seconds:
    """Return the time in which every member sends its next one a message: that of the furthest hop."""
    inside, across = _sends_s(payload, fabric)
    return np.where(group.inside(fabric.domain) < group.ranks, across, inside)


def _sends_s(payload: Bytes, fabric: Fabric) -> tuple[Seconds, Seconds]:
    """Return the time of one message inside a domain, and to another."""
    up, out = fabric.scale_up, fabric.scale_out
    inside = payload / (up.bytes_per_s * fabric.efficiency) + up.latency_s
    return inside, payload / (out.bytes_per_s * fabric.efficiency) + out.latency_s
