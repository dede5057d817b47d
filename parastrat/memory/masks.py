"""Attention masks: what each stage of a pipeline keeps of those it makes.

Stages run the model's own forward, with what stands between its blocks (``runtime.pipeline.staged``). A
checkpoint keeps what its block was given, masks among it: of all layers of a stage the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.columns import code_of
from parastrat.elementwise import larger, smaller, where
from parastrat.memory.kinds import shared_bytes
from parastrat.plan import Recompute

if TYPE_CHECKING:
    from parastrat.memory.flying import Pipes
    from parastrat.memory.kinds import Kind
    from parastrat.memory.plans import Job, Plans
    from parastrat.ranks.load import RankLoad
    from parastrat.units import Bytes, Numbers

_ATTENTION_AGAIN, _SELECTIVE = code_of(Recompute.ATTENTION), code_of(Recompute.SELECTIVE)


def masks_kept(plans: Plans, kind: Kind) -> Bytes:
    """Return what a stage without a kind of block keeps of the masks that stand behind that block.

    What samples share a kernel takes, which runs again where attention alone does; the others products do.
    """
    if kind.masks is None or plans.alike.piped is False:
        return 0.0
    own = shared_bytes(kind.masks._replace(fixed=None), plans.shares)
    kept = where(plans.policy >= _SELECTIVE, own, 0.0)
    if kind.masks.fixed is not None:
        samples = where(plans.over_context, plans.shares.replicated, 1.0)
        kept = kept + where(plans.policy >= _ATTENTION_AGAIN, kind.masks.fixed * samples, 0.0)
    return kept


def rows_of_masks(plans: Plans, kind: Kind) -> Bytes:
    """Return what masks behind a block take more where each rank of a sequence has its own rows of them.

    These are put together for every sample (``runtime.context_parallel.stream``), which share a whole mask;
    that those of few samples are less is left out.
    """
    if kind.masks is None or kind.masks.fixed is None:
        return 0.0
    more = kind.masks.fixed * larger(plans.shares.replicated - 1, 0.0)
    return where(plans.over_context & (plans.policy >= _ATTENTION_AGAIN), more, 0.0)


def lacking_stages(job: Job, load: RankLoad, c: Pipes) -> Numbers:
    """Return how many of a rank's stages have layers and lack the first block, as far as its numbers tell.

    A stage has at least one layer, or none and keeps nothing, as that of a large head alone.
    """
    layers: Numbers = sum(load.repeats[kind] for kind in job.units)
    return larger(smaller(layers, c.virtual_stages) - load.repeats[job.pipelines.kinds.of[0]], 0)
