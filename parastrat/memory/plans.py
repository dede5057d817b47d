"""A job's constants, and plans of it that are alike: one with its numbers, or many with arrays of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.elementwise import common, where
from parastrat.hardware import DeviceType
from parastrat.memory.alike import JobFlags
from parastrat.memory.kinds import Shares, shared_bytes
from parastrat.memory.variants import kinds_held
from parastrat.plan import ContextMethod, Recompute
from parastrat.ranks.division import division_of
from parastrat.ranks.matrices import muon_matrices
from parastrat.ranks.states import ElementBytes, context_bytes, element_bytes
from parastrat.remembered import remembered
from parastrat.tables import model_columns, stack_columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.memory.alike import Alike
    from parastrat.memory.variants import KindsOf
    from parastrat.model import ModelSpec
    from parastrat.ranks.division import Division
    from parastrat.ranks.matrices import Matrices
    from parastrat.ranks.pipelines import Pipelines
    from parastrat.stack import Stack
    from parastrat.units import Bytes, Mask, Numbers


_NOTHING_AGAIN, _ALL_GATHER = code_of(Recompute.NONE), code_of(ContextMethod.ALL_GATHER)

#: columns that formulas of memory read
READ = (
    "pp",
    "dp",
    "dp_shard",
    "cp",
    "cp_method",
    "tp",
    "ep",
    "micro_batch_size",
    "gradient_accumulation_steps",
    "virtual_stages",
    "shard",
    "reshard_after_forward",
    "sequence_parallel",
    "loss_parallel",
    "recompute",
    "offload",
    "pp_schedule",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What formulas of memory read of a job."""

    model: ModelSpec
    stack: Stack
    element: ElementBytes
    kinds: KindsOf
    #: that Muon updates, where it does
    matrices: Matrices | None
    pipelines: Pipelines
    #: what a device holds before there is a plan
    context: float
    #: of the model, the same on every rank
    buffers: float
    #: bytes that the allocator takes for each one that is asked for
    share: float
    flags: JobFlags
    #: the places of the kinds of units, and of all kinds
    units: tuple[int, ...]
    every_kind: range
    #: each block outside units is gathered by itself, not as a root's, at least without a pipeline
    rootless: bool
    #: of the job's columns those that are read
    columns: Mapping[str, Any]


@remembered
def job_of(facts: Facts) -> Job:
    """Return what is read of a job."""
    stack, kinds = facts.stack, kinds_held(facts.model, facts.stack)
    # Python multiplies a float by a whole number in thrice the time
    element = ElementBytes(**{name: float(size) for name, size in asdict(element_bytes(facts)).items()})
    pipelines = kinds.pipelines
    own = model_columns(facts.model)
    read = {"vocab": own["vocab"], "token_heads": own["token_heads"], **stack_columns(stack)}
    return Job(
        model=facts.model,
        stack=stack,
        element=element,
        kinds=kinds,
        matrices=muon_matrices(facts),
        pipelines=pipelines,
        context=float(context_bytes(facts)),
        buffers=float(facts.model.buffers),
        share=1 + stack.fragmentation,
        flags=JobFlags(fused=stack.kernels.fused, pooled=_pooled(facts), casts=element.cast > 0),
        units=tuple(place for place, unit in enumerate(pipelines.kinds.units) if unit),
        every_kind=range(len(pipelines.kinds.blocks)),
        rootless=stack.gathers_in_graph or stack.ends_apart,
        columns={name: value for name, value in read.items() if value is not None},
    )


def _pooled(facts: Facts) -> bool:
    """Return whether what is freed stays with the stream that made it, as in torch on accelerators.

    A stack that gathers and reduces in the stream that computes leaves nothing behind.
    """
    return not facts.stack.gathers_in_graph and facts.hardware.device.type is not DeviceType.CPU


@dataclass(slots=True)
class Plans:
    """One plan, whose numbers are Python's own, or several with columns of them.

    Not frozen, as what is made for each plan or rank here: that takes three times as long to make.
    """

    job: Job
    alike: Alike
    c: Columns
    kinds: KindsOf
    shares: Shares
    division: Division
    #: what is there of the model's output while backward runs, and what one tensor of a parallel loss takes
    #: of each byte for one sample that tp divides; tables that tp does not divide have a whole loss
    output: Bytes
    loss: Numbers
    #: where the experts of blocks are gathered on their own
    apart: Mask
    #: where several ranks have the positions of a sequence, and gather keys and values
    over_context: Mask
    #: whether units reshard; None: one or the other
    reshards: Mask | None
    #: the code of a policy, or of each plan's; of several beside kinds and plans, with policies first
    recompute: Any
    policy: Any
    alone: bool
    #: something is computed again
    again: bool


def shares_of(c: Columns, d: Division) -> Shares:
    """Return of how many samples of a micro-batch a rank has the bytes."""
    samples = c.micro_batch_size / c.cp
    tensor = samples / c.tp
    return Shares(
        samples,
        tensor,
        where(c.sequence_parallel, tensor, samples),
        samples / d.expert_tensor,
        where(c.loss_parallel, samples / d.vocabulary, samples),
    )


def in_parallel(c: Columns, d: Division) -> Mask:
    """Return where tp ranks compute the loss of their share of the vocabulary, which they all divide."""
    found: Mask = c.loss_parallel & (d.vocabulary >= c.tp)
    return found


def plans_of(job: Job, alike: Alike, c: Columns, *, alone: bool = False, policies: Any = None) -> Plans:
    """Return plans with what divides what they hold.

    Args:
        job: the job.
        alike: what they have in common.
        c: their columns.
        alone: it is one plan, whose columns are plain numbers.
        policies: codes of recompute policies of which each is looked at, where neither is chosen yet nor
            whether units reshard.
    """
    kinds, d = job.kinds, division_of(c)
    shares = shares_of(c, d)
    output = loss = 0.0
    if alike.piped is not True and kinds.output is not None:
        # a pipeline's last stage hands out its loss, and what the model returned is gone then
        output = where(alike.piped, 0.0, shared_bytes(kinds.output, shares))
    if kinds.losses:
        loss = job.stack.parallel_loss_tensors * where(in_parallel(c, d), shares.tensor, 0.0)
    recompute, reshards = (
        (c.recompute, common(c.reshard_after_forward)) if policies is None else (policies, None)
    )
    several = type(recompute) is np.ndarray
    policy = recompute[..., None, :] if several else recompute
    again = several or recompute != _NOTHING_AGAIN
    return Plans(
        job,
        alike,
        c,
        kinds,
        shares,
        d,
        output,
        loss,
        _apart(job, alike, c),
        common((c.cp > 1) & (c.cp_method == _ALL_GATHER)),
        reshards,
        recompute,
        policy,
        alone,
        again,
    )


def expert_units(job: Job, alike: Alike, c: Columns) -> Mask:
    """Return where the experts of blocks are FSDP2 units of their own."""
    if not job.stack.experts_apart or job.stack.gathers_in_graph or alike.gathers is False:
        return False
    return common(alike.gathers & (c.ep > 1))


def _apart(job: Job, alike: Alike, c: Columns) -> Mask:
    """Return where experts are gathered on their own, as units are; a pipeline keeps all gathered."""
    if alike.piped is True:
        return False
    units = expert_units(job, alike, c)
    return False if units is False else common(units & (alike.piped == 0))
