"""What pipeline ranks hold whatever runs: states, micro-batches in flight, and what waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.elementwise import chosen, larger, of_kinds, some, where
from parastrat.memory.crossing import crossing_bytes, widths_of
from parastrat.memory.flying import in_flight
from parastrat.memory.in_forward import Waits, in_forward
from parastrat.memory.masks import lacking_stages
from parastrat.memory.pools import idle_pool
from parastrat.ranks.division import divided, divided_total
from parastrat.ranks.load import NO_PARAMETERS
from parastrat.ranks.states import of_elements, states_of

if TYPE_CHECKING:
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.alike import Alike
    from parastrat.memory.in_forward import InForward
    from parastrat.memory.plans import Plans
    from parastrat.ranks.division import Division
    from parastrat.ranks.load import RankLoad
    from parastrat.ranks.spread import Rank
    from parastrat.ranks.states import OfElements
    from parastrat.units import Bytes, Mask, Numbers


@dataclass(slots=True)
class OfRanks:
    """What is read of the plans of ranks: as columns, and what crosses from one rank to another."""

    alike: Alike
    division: Division
    elements: OfElements
    pp: Numbers
    virtual_stages: Numbers
    gradient_accumulation_steps: Numbers
    width: Bytes
    given: Bytes


@dataclass(slots=True)
class RankHeld:
    """What a rank holds, or each of many."""

    alike: Alike
    #: bytes that are there throughout backward
    level: Bytes
    #: what one micro-batch keeps in blocks, how many are in flight, and how many a step has
    one: Bytes
    #: beside it, of masks on stages that lack the first block
    masks: Bytes
    flying: Numbers
    steps: Numbers
    #: micro-batches of a step that are too few for turns, or 0
    few: Numbers
    #: gradients that wait for the end of a step are not there in the first backward: all micro-batches of
    #: one are in flight then, in a pipeline that gathers parameters
    early: Mask
    #: gradients are not there at a moment of most: not where later micro-batches, of which as many are in
    #: flight, find all of them
    lacks: Mask
    #: gradients of a micro-batch that wait as a later one begins its backward
    waiting: Bytes
    #: parameters that are gathered, of these the root's, and whole ones that are trained
    everything: Numbers
    root: Numbers
    trained: Numbers
    #: casts that are there at the end of a stage's forward
    casts: Bytes
    #: gradients that stay, and of these those of units
    gradients: Bytes
    of_units: Bytes
    #: all states
    states: Any
    #: bytes in the optimizer step, where a foreach optimizer makes one temporary copy and activations there
    #: are none, or as a forward gathers a unit
    stepping: Bytes
    forward: tuple[InForward, ...]
    #: what those moments are made of
    waits: Waits
    #: what the allocator holds and nothing uses
    pool: Bytes
    #: for what it receives
    buffers: Bytes
    #: of micro-batches in flight, and of what it sent of them; without those that take turns
    held: Bytes
    #: parameters whose gradients wait to be copied in the reduction's format
    uncast: Numbers

    def at(self, places: Any) -> RankHeld:
        """Return it for some of the ranks."""
        held: Any = _HeldAt(self, places)
        found: RankHeld = held
        return found


class _HeldAt:
    """What some of many ranks hold, as ``RankHeld``; what is read is taken then."""

    def __init__(self, every: Any, places: Any) -> None:
        self.__dict__.update(_every=every, _places=places)

    def __getattr__(self, name: str) -> Any:
        value = chosen(getattr(self._every, name), self._places)
        self.__dict__[name] = value
        return value

    def at(self, places: Any) -> _HeldAt:
        """Return it for some of these."""
        return _HeldAt(self, places)


def ranks_read(plans: Plans, rows: Any) -> OfRanks:
    """Return what is read of the plans of ranks."""
    c = plans.c
    every = (
        plans.alike,
        plans.division,
        of_elements(plans.alike.offload, plans.job.element),
        c.pp,
        c.virtual_stages,
        c.gradient_accumulation_steps,
        *widths_of(plans),
    )
    return OfRanks(*(every if rows is None else chosen(every, rows)))


def rank_held(plans: Plans, kinds: KindBytes, rank: Rank, c: OfRanks) -> RankHeld:
    """Return what a rank holds.

    Args:
        plans: the plans.
        kinds: bytes of one repeat of each kind of block.
        rank: the blocks of the rank, or of all ranks.
        c: what is read of its plans.
    """
    job, load, alike, steps = plans.job, rank.load, c.alike, c.gradient_accumulation_steps
    own = divided(load.trainable, c.division)
    states = states_of(own, load, c.division, alike.shard, c.elements, job.matrices)
    one, of_units, casts = of_kinds(kinds.kept, rank.counts, rank.rows), 0.0, 0.0
    flying = in_flight(alike, c, load.rank)
    buffers, sent = crossing_bytes(job.stack.crossing, c, load.rank, flying)
    masks = 0.0
    if job.kinds.masks and alike.piped is not False:
        lacking = job.pipelines.kinds.of[0], lacking_stages(job, load, c)
        masks = of_kinds(kinds.masks, [lacking], rank.rows)
    held = flying * one + sent
    if alike.turns is not False:
        held = where(alike.turns, sent, held)
    held = held + flying * masks
    everything, root, trained = _parameters(alike, c.division, load, own)
    pool, waiting = idle_pool(plans, kinds, rank, root, alike.gathers), 0.0
    if kinds.coming is not None:
        of_units = of_kinds(kinds.coming.of_unit, rank.counts, rank.rows)
    if alike.casts is not False:
        casts = of_kinds(kinds.casts, rank.counts, rank.rows) / c.virtual_stages
    if alike.waits is not False and some(several := steps > 1):
        waiting = where(several, _waiting_bytes(plans, alike, trained, root), 0.0)
    base = job.context + job.buffers + pool + states.kept
    stepping = base + states.stepping + buffers
    forward: tuple[InForward, ...] = ()
    waits = Waits(alike, c.division, states, steps, pool, everything, root, one, waiting)
    if not job.flags.pooled:
        forward = in_forward(plans, kinds, rank, waits)
    for moment in forward:
        stepping = larger(stepping, moment.total)
    return RankHeld(
        alike,
        base + job.share * (held + buffers),
        one,
        masks,
        flying,
        steps,
        0 if alike.few is False else where(alike.few, steps, 0),
        alike.early & (steps <= flying) if alike.early is not False else False,
        _lacking(alike, steps, flying),
        waiting,
        everything,
        root,
        trained,
        casts,
        states.gradients,
        of_units,
        states,
        stepping,
        forward,
        waits,
        pool,
        buffers,
        held,
        _uncast(plans, kinds, rank, c, (everything, root)),
    )


def _uncast(
    plans: Plans, kinds: KindBytes, rank: Rank, c: OfRanks, held: tuple[Numbers, Numbers]
) -> Numbers:
    """Return the parameters whose gradients wait in the compute format, where backward is split.

    FSDP2 copies gradients as backward leaves a unit, which that of weights alone does not: those that it
    made wait for the next micro-batch's backward of inputs (``to_accumulated_grad_if_needed`` in
    torch/distributed/fsdp/_fully_shard/_fsdp_param.py). A first stage's backward is whole, with the
    embedding's; of its units a rank has as many as of another stage's.
    """
    job, alike, (everything, root) = plans.job, c.alike, held
    if alike.splits is False or alike.gathers is False or job.element.reduce <= job.element.compute:
        return 0.0
    first, begins = job.pipelines.kinds.of[0], rank.load.rank == 0
    own = kinds.root[first] if rank.rows is None else kinds.root.at(first, rank.rows)
    units = (everything - root) * (1 - begins / c.virtual_stages)
    several = alike.splits & alike.gathers & (c.gradient_accumulation_steps > 1)
    return where(several, units + larger(root - own * begins, 0.0), 0.0)


def _parameters(
    alike: Alike, d: Division, load: RankLoad, own: tuple[Numbers, Numbers]
) -> tuple[Numbers, Numbers, Numbers]:
    """Return parameters that a rank gathers, of these the root's, and ``own`` that it trains, all whole."""
    if alike.gathers is False and alike.waits is False:
        return 0.0, 0.0, 0.0
    dense, expert = own
    everything = trained = dense + expert
    if load.frozen is not NO_PARAMETERS:
        everything = trained + divided_total(load.frozen, d)
    return everything, divided_total(load.root, d), trained


def _lacking(alike: Alike, steps: Numbers, flying: Numbers) -> Mask:
    """Return where gradients are not there at some moment of most, as ``RankHeld`` has it."""
    if alike.frees is False and alike.adds is False:
        return False
    as_many = where(alike.gathers, False, steps <= flying)
    return (alike.frees | alike.adds) & (alike.late | (steps == 1) | as_many)


def _waiting_bytes(plans: Plans, alike: Alike, trained: Numbers, root: Numbers) -> Bytes:
    """Return what gradients take beside those that stay, where a micro-batch follows another.

    FSDP2 lets go of a unit's whole gradients when the next unit reduces, and waits for the last one, the
    root's, only in the last backward (``set_is_last_backward``). torch's DDP, which pipelines do without,
    accumulates beside its buckets (``no_sync``) and copies into them in the last backward
    (torch/csrc/distributed/c10d/reducer.cpp, ``copy_bucket_with_grad``); Megatron's accumulates in them.
    """
    element = plans.job.element
    waiting = where(alike.gathers, element.reduce * root, element.gradient * trained)
    return where(alike.waits, waiting, 0.0)
