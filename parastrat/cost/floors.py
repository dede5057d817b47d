"""Seconds below which plans do not get: those of one rank of each pipeline, without resharding.

A step takes as long as on its slowest rank, so that any rank tells a floor. The one whose blocks take
longest (``HeavyRanks``) mostly is the slowest, or next to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of, derived_with
from parastrat.cost.blocks import block_seconds, forward_s, whole_s
from parastrat.cost.step import exposed_s, rank_step, weights_s
from parastrat.distinct import NUMBERED, distinct
from parastrat.plan import Recompute
from parastrat.ranks.heaviest import heavy_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.blocks import BlockSeconds
    from parastrat.ranks.heaviest import HeavyRanks
    from parastrat.units import Numbers, Seconds

#: what decides the weights of meshes over all devices of a job, of ranks that hang on the number of stages
#: alone: cp is further shards there, what is left of the ranks are replicas, and tp divides sequences
#: wherever it is
_WEIGHTS_BY = (*NUMBERED["sharding"], "offload")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heaviest:
    """A job, and of each pipeline of its model the rank that floors tell of."""

    facts: Facts
    ranks: HeavyRanks


def heaviest_of(facts: Facts, columns: Columns, blocks: tuple[Columns, BlockSeconds]) -> Heaviest:
    """Return of each pipeline that some plans have the rank whose blocks take longest, about.

    Whatever plans compute again, it is the same rank, so that floors rise with it.

    Args:
        facts: the job.
        columns: the plans.
        blocks: plans that tell how blocks share the seconds of a rank, with what theirs take.
    """
    c, seconds = blocks[0].joined({"recompute": code_of(Recompute.NONE)}), blocks[1]
    whole = whole_s(seconds.of_kinds(c))
    shares = (whole / whole_s(seconds.of_model(c))).mean(axis=-1)
    return Heaviest(facts=facts, ranks=heavy_ranks(facts.model, columns, shares))


def time_floor(
    facts: Facts,
    columns: Columns,
    known: tuple[BlockSeconds, Heaviest, Mapping[str, Any]] | None = None,
) -> Seconds:
    """Return the seconds below which no plan of a row gets with its recompute, whatever resharding it has.

    It is the step, without resharding, of the rank whose blocks take longest, which holds no less than what
    stands for its weights. Further gathering adds seconds, of which communication that hides behind compute
    takes back a share.

    ``known`` are the seconds of the rows' blocks, their ranks, and the seconds of these ranks' weights
    (``least_weights_s``).
    """
    plain = columns.joined({"reshard_after_forward": False})
    if known is None:
        blocks = block_seconds(facts, plain)
        heaviest = heaviest_of(facts, plain, (plain, blocks))
        known = blocks, heaviest, weights_s(facts, plain, heaviest.ranks.least_of(plain))
    blocks, heaviest, weights = known
    one = blocks.of_ranks(plain, heaviest.ranks.repeats_of(plain))
    step: Seconds = rank_step(facts, plain, {**one, "of_all": blocks.of_model(plain), **weights})["step"]
    return step.reshape(-1)


@derived_with
def least_weights_s(heaviest: Heaviest, columns: Columns) -> dict[str, Any]:
    """Return the least seconds of the weights of meshes on the rank that floors tell of.

    They hang on meshes, and on where states are. Of mixtures' many meshes a fifth differs in what decides.
    """
    plain, at = distinct(columns.joined({"reshard_after_forward": False}), _WEIGHTS_BY)
    seconds = weights_s(heaviest.facts, plain, heaviest.ranks.least_of(plain))
    return {part: np.broadcast_to(each, len(plain.pp)).take(at) for part, each in seconds.items()}


def micro_batch_s(columns: Columns, blocks: BlockSeconds, ranks: HeavyRanks, sizes: int) -> Iterator[Any]:
    """Yield the least seconds of one micro-batch of each size by number of stages, stages before widths.

    They are those of all blocks of a pipeline's heaviest rank; of those of its other ranks; and of the
    others' forwards, or the gradients of their inputs if these take less.

    Args:
        columns: every width with every size of a micro-batch, of which there are so many.
        blocks: the seconds of their blocks.
        ranks: the heaviest ranks.
        sizes: of a micro-batch.
    """
    of_kinds = blocks.of_kinds(columns)
    whole, forward = whole_s(of_kinds), forward_s(of_kinds)
    parts = np.stack([whole, forward, whole - forward - of_kinds["weights"]])
    # one size after the other: arrays of all would not stay in memory that the process has
    for own in np.moveaxis(parts.reshape(*parts.shape[:2], -1, sizes), -1, 0).copy():
        every = np.tensordot(np.array(blocks.repeats), own, (0, 1))
        first, *further = (repeats @ own for repeats in ranks.several)
        most, least = first, first[0]
        for other in further:
            least, most = np.minimum(least, other[0]), np.maximum(most, other)
        others, forwards, inputs = np.maximum(every[:, None] - most, 0.0)
        yield least, others, np.minimum(forwards, inputs)


def weights_floor(
    facts: Facts, columns: Columns, work: Seconds, micro_batches: Numbers, weights: Mapping[str, Any]
) -> Seconds:
    """Return the seconds below which ``time_floor`` does not get where blocks and bubble take ``work``.

    On top come the step's constant, the optimizer, gradients that are added, and the collectives of
    parameters and gradients, without resharding, with what is copied for them and cast. What they hide
    behind is at most all the work.

    Args:
        facts: the job.
        columns: the plans, without micro-batches.
        work: of each plan.
        micro_batches: of a step of each plan.
        weights: what ``least_weights_s`` tells of the plans.
    """
    floor = work + facts.stack.step_constant_s + weights["optimizer"]
    floor = floor + (micro_batches - 1) * weights["summed"]
    if "cast_weights" in weights:
        floor = floor + micro_batches * (weights["cast_weights"] + weights["cast_gradients"])
    if "each" not in weights:
        return floor
    gathered = np.where(columns.pp > 1, 1, micro_batches)
    floor = floor + weights.get("copies", 0.0) * gathered
    return floor + exposed_s(weights, gathered, micro_batches, work)
