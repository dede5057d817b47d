"""What a repeat of each kind of block holds: bytes for one sample by what divides them, and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from parastrat.model import OperatorKind
from parastrat.moments import Busy
from parastrat.plan import Recompute
from parastrat.ranks.load import NO_PARAMETERS, ParameterTotals
from parastrat.ranks.totals import added_totals, block_totals, cast_totals
from parastrat.remembered import remembered
from parastrat.saved import NOTHING, Saved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from parastrat.model import Block, ModelSpec
    from parastrat.units import Bytes, Numbers

#: operators whose weights autocast casts
_PRODUCTS = (
    OperatorKind.MATMUL,
    OperatorKind.GROUPED_MATMUL,
    OperatorKind.CONVOLUTION,
    OperatorKind.RECURRENT,
)
#: of a unit's gradients those that come late, where nobody knows
_UNKNOWN = 0.5
#: at most, at which attention may hold most
_MOMENTS = 2


class Shared(NamedTuple):
    """Bytes for one sample by what divides them, as ``Saved``; None of what there is none of."""

    replicated: Any
    tensor: Any = None
    sequence: Any = None
    expert: Any = None
    loss: Any = None
    fixed: Any = None


_NOTHING = Shared(0.0)


class Shares(NamedTuple):
    """The samples of a micro-batch whose bytes a rank has, by what divides them; as ``Shared``."""

    replicated: Numbers
    tensor: Numbers
    sequence: Numbers
    expert: Numbers
    loss: Numbers


def shared_bytes(shared: Shared | None, of: Shares) -> Bytes:
    """Return one micro-batch's bytes on one rank of activations given for one sample."""
    if shared is None:
        return 0.0
    replicated, tensor, sequence, expert, loss, fixed = shared
    bytes_ = replicated * of[0]
    if tensor is not None:
        bytes_ += tensor * of[1]
    if sequence is not None:
        bytes_ += sequence * of[2]
    if expert is not None:
        bytes_ += expert * of[3]
    if loss is not None:
        bytes_ += loss * of[4]
    return bytes_ if fixed is None else bytes_ + fixed


class Moment(NamedTuple):
    """A moment of a block's backward: what exists then, and the share of gradients that are there."""

    working: Shared
    #: beyond the least share of all moments
    sooner: Numbers
    #: the share that comes later
    late: Any


class Attending(NamedTuple):
    """Attention as it runs backward where ranks gather keys and values, as ``attends.Attends`` tells it."""

    #: the share of gradients that comes later
    late: Any
    freed: Shared | None
    gathered: Shared | None
    joined: Shared | None
    #: of all positions, and of a rank's own
    moments: tuple[tuple[Shared | None, Shared | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What one repeat of a kind of block holds for one sample; None of what no repeat has."""

    #: for backward, under each recompute policy
    kept: tuple[Shared, ...]
    #: at the moments at which it may hold most
    moments: tuple[Moment, ...]
    #: what a backward of inputs alone leaves to that of the weights
    awaited: Shared | None
    #: and what may exist while it runs, as all that it keeps stays
    retained: Shared | None
    #: what lies beside a new gradient of its largest weight, and whether that is a later block's as well
    beside_added: Shared | None
    tied: Any
    #: what is gone halfway through a unit's backward
    freed: Shared | None
    attending: Attending | None
    #: of all positions behind the last unit, where code counts them
    between: Shared | None
    #: of the model's output what a training script holds
    output: Shared | None
    #: masks behind the first block
    masks: Shared | None
    #: one more tensor of a parallel loss, by what tp divides, and whether the block is a closed form's head
    of_loss: Any
    head: Any
    #: of a head in chunks, what its forward makes of one of them
    chunk: Shared | None
    #: parameters that tp ranks gather, and what more than halfway is gone as they do for a gradient
    regathered: Any
    stretched: Any
    unshared: Any
    behind_regathered: Shared | None
    #: parameters: of units, of others, of both trainable, cast by autocast, and of the largest weight
    unit: ParameterTotals
    root: ParameterTotals
    trainable: ParameterTotals
    cast: ParameterTotals
    added: ParameterTotals
    #: of a tied weight's block the unit whose gradients are reduced as it runs backward
    before: ParameterTotals
    #: of a unit's gradients the share that comes after its halfway moment
    later: Any
    #: the share that is there whenever it may hold most, and whether it is unknown when
    soonest: Any
    unknown: Any
    of_unit: Any


class Way(NamedTuple):
    """In which way a model's kinds are asked for."""

    autocast: bool
    #: the kind sees whole sequences
    whole: bool
    #: of any kind it is known what of its gradients is there when it holds most
    known: bool


def parameters_of(block: Block, others: Sequence[Block]) -> dict[str, Any]:
    """Return the parameters of a kind of block by name, the same in whatever way it is asked for.

    Args:
        block: one of the kind.
        others: of the kinds that come later in the model.
    """
    every, tied = block_totals(block), _is_tied(block, others)
    multiplies = any(operator.kind in _PRODUCTS for operator in block.operators)
    return {
        "unit": every if block.unit else NO_PARAMETERS,
        "root": NO_PARAMETERS if block.unit else every,
        "trainable": block_totals(block, trainable=True),
        "cast": cast_totals(block) if multiplies else NO_PARAMETERS,
        "added": added_totals(block),
        "tied": tied,
        "before": block_totals(others[0]) if tied and others[0].unit else NO_PARAMETERS,
    }


def held_anyway(block: Block, model: ModelSpec, *, whole: bool) -> dict[str, Any]:
    """Return by name what one repeat of a block of a model holds with autocast and without."""
    shared = partial(shared_of, whole=whole)
    regathers = _regathers(model)
    return {
        "freed": shared(block.halfway.freed) if block.halfway else None,
        "attending": _attending(block, shared),
        "between": shared(block.between),
        "output": shared_of(block.output),
        "of_loss": block.loss_parallel_bytes or None,
        "head": block.loss_parallel_bytes > 0 and not model.dispatched,
        "regathered": block.regathered if regathers else None,
        "stretched": block.stretched if regathers else None,
        "unshared": block.unshared if regathers else None,
        "behind_regathered": shared(block.behind_regathered),
        "later": 1.0 if block.halfway is None else 1 - block.halfway.meanwhile,
        "unknown": block.meanwhile is None,
        "of_unit": block.unit,
    }


def kind_of(block: Block, way: Way, anyway: Mapping[str, Any]) -> Kind:
    """Return what one repeat of a block holds in one way.

    Args:
        block: the block.
        way: in which it is asked for.
        anyway: by name its parameters, and what else does not hang on autocast.
    """
    own = (block.autocast or block) if way.autocast else block
    soonest = min(moment.meanwhile for moment in block.moments)
    moments = cast_moments(block) if way.autocast else block.moments
    shared = partial(shared_of, whole=way.whole)
    kept = [shared(own.activations.under(policy)) or _NOTHING for policy in Recompute]
    # what policies do nothing to is told by identity
    alike: dict[Shared, Shared] = {}
    return Kind(
        kept=tuple(alike.setdefault(each, each) for each in kept),
        moments=tuple(
            Moment(shared(moment.working) or _NOTHING, moment.meanwhile - soonest, _late(block, moment))
            for moment in moments
        ),
        awaited=shared(own.awaited),
        retained=shared(own.retained),
        beside_added=shared(own.beside_added),
        masks=shared_of(own.masks),
        chunk=shared(Saved(loss=own.working.loss)) if block.chunks > 1 else None,
        soonest=soonest if way.known else 0.0,
        **anyway,
    )


def _attending(block: Block, shared: Callable[[Saved], Shared | None]) -> Attending | None:
    own = block.attends
    if own is None:
        return None
    moments = tuple((shared(whole), shared(part)) for whole, part in own.moments)
    # of equal length, beside kinds that have more
    moments = (moments + moments[-1:])[:_MOMENTS]
    freed, gathered, joined = (shared(saved) for saved in (own.freed, own.gathered, own.joined))
    return Attending(1 - own.meanwhile, freed, gathered, joined, moments)


def _late(block: Block, moment: Busy) -> float:
    """Return the share of a unit's gradients that comes after a moment."""
    return _UNKNOWN if block.meanwhile is None else 1 - moment.meanwhile


@remembered
def _regathers(model: ModelSpec) -> bool:
    return any(block.stretched for block in model.blocks)


def cast_moments(block: Block) -> tuple[Busy, ...]:
    """Return the moments at which a block may hold most under autocast."""
    own = block.autocast or block
    return own.busy or (Busy(working=own.working, meanwhile=block.meanwhile or 0.0),)


def _is_tied(block: Block, others: Sequence[Block]) -> bool:
    """Return whether the largest weight of a block is one of some others' as well."""
    tie = None if block.added is None else block.added.tie_group
    return tie is not None and any(group.tie_group == tie for each in others for group in each.parameters)


def shared_of(saved: Saved, *, whole: bool = False) -> Shared | None:
    """Return bytes by what divides them; along a sequence nothing does in what sees a whole one."""
    if saved is NOTHING:
        return None
    replicated, sequence = float(saved.replicated), float(saved.sequence)
    if whole:
        replicated, sequence = replicated + sequence, 0.0
    # hundreds are made of a model: to go through the parts takes twice as long
    tensor, expert, loss, fixed = saved.tensor, saved.expert, saved.loss, saved.fixed
    if not (replicated or tensor or sequence or expert or loss or fixed):
        return None
    return Shared(
        replicated,
        float(tensor) or None,
        sequence or None,
        float(expert) or None,
        float(loss) or None,
        float(fixed) or None,
    )
