"""Seconds of what lives in host memory: copies of shards over the device's link, and updates on the host.

FSDP2 with ``CPUOffloadPolicy`` keeps shards on the host, in the weights' own format. Each gathering first
copies them to the device (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``all_gather_inputs``), each
reduction copies gradients back, and a gradient that is there already is added to on the host, for which the
Python thread waits (_fsdp_collectives.py, ``foreach_reduce``; torch 2.13). The optimizer then runs there.
An optimizer offloaded alone has one copy a step: gradients down, updated weights up (arXiv:2101.06840).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.hardware import FigureKind
from parastrat.plan import Offload, Shard
from parastrat.ranks.division import division, local, sharded_total
from parastrat.ranks.states import element_bytes, updated_parameters
from parastrat.remembered import remembered

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks import ParameterTotals, RankLoad
    from parastrat.units import Mask, Numbers, Seconds

#: a sum reads two tensors and writes one
_SUMMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRates:
    """How fast what is offloaded moves, bytes per second."""

    #: between host and one device, one direction
    link: float
    #: in the host's memory, all processes together; None: unknown, and each is assumed to have as much of
    #: it as its link carries
    memory: float | None
    link_is_assumed: bool

    @property
    def are_assumed(self) -> bool:
        """Whether one of them is."""
        return self.link_is_assumed or self.memory is None


@remembered
def host_rates(facts: Facts) -> HostRates:
    """Return the rates.

    A link that nobody states is assumed to be the device's own memory, as where host and device share one.
    """
    hardware = facts.hardware
    device, host = hardware.device, hardware.host
    link = device.host_bytes_per_s or device.memory_bytes_per_s
    kinds = {entry.field: entry.kind for entry in device.provenance}
    assumed = kinds.get("host_bytes_per_s") is FigureKind.ASSUMED
    return HostRates(
        link=link,
        memory=host.memory_bytes_per_s or None,
        link_is_assumed=assumed or device.host_bytes_per_s is None,
    )


def rests_on_assumed(facts: Facts, c: Columns) -> Mask:
    """Return where a step's time rests on an assumed rate of what is offloaded."""
    return offloads(c) & host_rates(facts).are_assumed


def offloads(c: Columns) -> Any:
    """Return where something is offloaded."""
    return c.offload != code_of(Offload.NONE)


def offloads_parameters(c: Columns) -> Any:
    """Return where parameters are offloaded, and all else with them."""
    return c.offload == code_of(Offload.PARAMETERS)


def copies_s(facts: Facts, c: Columns, unit: ParameterTotals) -> tuple[Seconds, Seconds]:
    """Return the seconds in which a rank's shard of parameters is copied up, and its gradients down."""
    element, link = element_bytes(facts), host_rates(facts).link
    shard = _shard(unit, c) * offloads_parameters(c)
    return shard * element.parameter / link, shard * element.gradient / link


def host_update_s(facts: Facts, c: Columns, load: RankLoad, moved: float) -> Seconds:
    """Return what the optimizer takes on the host, with the copies of one that is offloaded alone.

    Args:
        facts: the job.
        c: the plans.
        load: what one pipeline rank holds.
        moved: bytes that an update of one parameter reads and writes.
    """
    element, updated = element_bytes(facts), updated_parameters(load, c)
    copied = updated * (element.gradient + element.parameter) / host_rates(facts).link
    alone = np.where(offloads_parameters(c), 0.0, copied)
    update: Seconds = updated * moved / _share_of_memory(facts, c) + alone
    return update


def host_sum_s(facts: Facts, c: Columns, load: RankLoad) -> Seconds:
    """Return what adding a rank's gradients to those of a micro-batch before takes on the host."""
    added = _shard(load.trainable, c) * element_bytes(facts).gradient * _SUMMED
    seconds: Seconds = offloads_parameters(c) * added / _share_of_memory(facts, c)
    return seconds


def _shard(totals: ParameterTotals, c: Columns) -> Numbers:
    return sharded_total(local(totals, c), division(c), c.shard == code_of(Shard.PARAMETERS))


def _share_of_memory(facts: Facts, c: Columns) -> Numbers:
    """Return one process's share of its host's memory rate: that of its socket at most."""
    hardware, rates = facts.hardware, host_rates(facts)
    if rates.memory is None:
        return rates.link
    ranks = np.minimum(c.pp * c.dp * c.cp * c.tp, hardware.devices_per_node)
    return rates.memory / np.maximum(ranks, hardware.host.numa_nodes or 1)
