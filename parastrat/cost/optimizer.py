"""Seconds of what a step does with weights beside computing and sending them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.offload import host_sum_s, host_update_s, offloads, offloads_parameters
from parastrat.cost.orthogonal import orthogonalized_s
from parastrat.cost.updates import update_bytes
from parastrat.elementwise import some
from parastrat.plan import Shard
from parastrat.ranks import block_kinds
from parastrat.ranks.division import division, local, local_total, sharded_total
from parastrat.ranks.matrices import updated_matrices
from parastrat.ranks.states import element_bytes, updated_parameters
from parastrat.ranks.totals import unit_totals
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.ranks import RankLoad
    from parastrat.units import Seconds


def optimizer_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric | None) -> Seconds:
    """Return the optimizer's memory traffic, gradients, weights and states, and Muon's products.

    What is offloaded is updated on the host.
    """
    moved, spared = update_bytes(facts)
    all_moved = updated_parameters(load, c) * moved
    if spared:
        all_moved = all_moved - updated_matrices(facts, c, load) * spared
    here = all_moved * facts.stack.elementwise_factor / facts.hardware.device.memory_bytes_per_s
    away = offloads(c)
    if some(away):
        here = np.where(away, host_update_s(facts, c, load, moved), here)
    return here + orthogonalized_s(facts, c, load, fabric) + _weights_cast_s(facts, c, load)


def sum_s(facts: Facts, c: Columns, load: RankLoad) -> Seconds:
    """Return what adding the gradients of a micro-batch to those of the ones before takes.

    What is offloaded is added on the host.
    """
    here, away = _sum_here_s(facts, c, load), offloads_parameters(c)
    # under a pipeline shards are reduced once (``gatherings``)
    return np.where(away, (c.pp == 1) * host_sum_s(facts, c, load), here) if some(away) else here


def _sum_here_s(facts: Facts, c: Columns, load: RankLoad) -> Seconds:
    """Return what it takes on the device.

    Autograd does that with a kernel for each weight (torch/csrc/autograd/functions/accumulate_grad.h),
    FSDP2 with its shards. Where a pipeline runs, these are reduced once, so that gradients are added whole.
    Of stacks that fuse blocks by hand nothing is counted: products add (``adds_gradients``), or it stands
    in the constants that were fitted without it.
    """
    if facts.stack.kernels.fused:
        return 0.0
    element, fsdp = element_bytes(facts), c.shard == code_of(Shard.PARAMETERS)
    added = sharded_total(local(load.trainable, c), division(c), fsdp & (c.pp == 1))
    # FSDP2's whole ones come in the format of products (_fsdp_param.py, to_accumulated_grad_if_needed)
    come = np.where(fsdp & (c.pp > 1), element.compute, element.gradient)
    moved = added * (2 * element.gradient + come) * facts.stack.elementwise_factor
    seconds: Seconds = moved / facts.hardware.device.memory_bytes_per_s
    return seconds


def _weights_cast_s(facts: Facts, c: Columns, load: RankLoad) -> Seconds:
    """Return what casting the weights of a rank's blocks takes where a step does that once."""
    stack, device = facts.stack, facts.hardware.device
    if not (stack.casts_weights_once and facts.workload.precision is Precision.FP8):
        return 0.0
    units = local_total(unit_totals(block_kinds(facts.model)), c)
    cast = sum(own * count for own, count in zip(units, load.repeats, strict=True))
    # ranks that gather parameters get them cast
    once = c.shard != code_of(Shard.PARAMETERS)
    return once * cast * stack.cast_bytes * stack.elementwise_factor / device.memory_bytes_per_s
