"""How a model's chain of blocks is cut over the stages of a pipeline."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from parastrat.remembered import remembered
from parastrat.stage_load import StageLoad

if TYPE_CHECKING:
    from parastrat.model import ModelSpec

#: limits are this much wider than the load that they are meant for, whose sum may round another way
_ROUNDING = 1 + 1e-9


def loads_of(model: ModelSpec, stages: int) -> list[float]:
    """Return what each repeat of each block counts where the chain is cut to so many stages.

    That is its FLOPs, or one for a layer and nothing for the ends where stages are even: Megatron-LM
    divides its layers by the stages, with logits on the last beside as many layers as on any (@d98e8a6,
    megatron/core/transformer/transformer_block.py, get_num_layers_to_build), and Megatron-DeepSpeed's
    pipeline counts them by type:transformer, or with both ends as layers by type:transformer|embedding
    (@f4157be, megatron/model/gpt_model.py, GPTModelPipe). Layers that do not divide need a layout of the
    user's own, which is taken to be alike in FLOPs.
    """
    if model.stage_load is not StageLoad.FLOPS:
        ends = float(model.stage_load is StageLoad.BLOCKS)
        counted = [1.0 if block.unit else ends for block in model.blocks for _ in range(block.repeat)]
        if sum(counted) % stages == 0:
            return counted
    return _flops_of(model)


@remembered
def _flops_of(model: ModelSpec) -> list[float]:
    flops = {id(block): block.flops + block.hidden_flops for block in model.distinct_blocks}
    return [flops[id(block)] for block in model.blocks for _ in range(block.repeat)]


def cut(model: ModelSpec, stages: int) -> tuple[tuple[int, ...], ...]:
    """Cut the chain into contiguous stages so that the one with the most FLOPs has the fewest.

    Where stages hold equally many layers instead, FLOPs do not count (``loads_of``).

    Stages are filled from the end, each to the mean of what is left: where they cannot be equal, the first
    ones, which hold the most micro-batches in flight, get less. Llama 3 405B on 16 stages comes out as
    published (arXiv:2407.21783, section 3.3.2): one layer less on the first and on the last stage. With
    more stages than blocks the first stages are empty.

    Returns:
        For each stage the repeats of each block.
    """
    chain = [index for index, block in enumerate(model.blocks) for _ in range(block.repeat)]
    filled = [[0] * len(model.blocks) for _ in range(stages)]
    for index, stage in zip(chain, cut_chain(loads_of(model, stages), stages), strict=True):
        filled[stage][index] += 1
    return tuple(tuple(repeats) for repeats in filled)


def cut_chain(flops: list[float], stages: int) -> list[int]:
    """Return the stage of each item of a chain with these FLOPs, cut as ``cut`` says."""
    # adds up the chain from its end
    loads = [0.0, *accumulate(reversed(flops))]
    limit = _least_limit(loads, max(flops), stages)
    needed = _stages_needed(loads, limit)
    places = [0] * len(flops)
    stage, load, left = stages - 1, 0.0, sum(flops)
    for index in reversed(range(len(flops))):
        full = load > 0 and load + flops[index] > limit
        # what computes next to nothing, such as the norm before a head, stays with what reads it
        even = flops[index] > 0 and 0 < left / (stage + 1) <= load
        if even and not full:
            even = needed[len(flops) - 1 - index] <= stage
        begun = index + 1 < len(flops) and places[index + 1] == stage
        if stage > 0 and begun and (full or even or index + 1 <= stage):
            stage, load, left = stage - 1, 0.0, left - load
        places[index] = stage
        load += flops[index]
    return places


def _least_limit(loads: list[float], largest: float, stages: int) -> float:
    """Return the smallest load such that contiguous stages of at most that load suffice.

    Each try either suffices, with stages that may all be smaller than was allowed, or tells the next load
    at which any stage would hold more. Of equal items the first loads that are possible mostly suffice, so
    that every other try is the least that is left.
    """
    low, high = max(largest, loads[-1] / stages), loads[-1]
    least = True
    while high - low > 1e-6 * high:
        reached, most, least_more = 0, 0.0, high
        limit = low * _ROUNDING if least else (low + high) / 2
        least = not least
        for _ in range(stages):
            start = loads[reached]
            reached = bisect_right(loads, start + limit) - 1
            most = max(most, loads[reached] - start)
            if reached == len(loads) - 1:
                high = most
                break
            least_more = min(least_more, loads[reached + 1] - start)
        else:
            low = least_more
    return high * _ROUNDING


def _stages_needed(loads: list[float], limit: float) -> list[int]:
    """Return by how many items from the end have a stage the stages of at most ``limit`` for the others.

    No item is larger than the limit.
    """
    needed = [0] * len(loads)
    for reached in reversed(range(len(loads) - 1)):
        needed[reached] = 1 + needed[bisect_right(loads, loads[reached] + limit) - 1]
    return needed
