"""What tp, ep and shards leave of parameters on one rank: numbers for one plan, arrays for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from parastrat.columns import derived, derived_with
from parastrat.elementwise import common, where
from parastrat.ranks.load import NO_PARAMETERS, NONE, ParameterTotals, has_any

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.units import Mask, Numbers


class Division(NamedTuple):
    """Over how many ranks parameters are divided, and over how many these are sharded."""

    tensor: Numbers
    vocabulary: Numbers
    experts: Numbers
    #: what experts compute: their width, or under ep or where they are whole their tokens
    expert_tensor: Numbers
    dense_shards: Numbers
    expert_shards: Numbers

    @property
    def sums_experts(self) -> Mask:
        """Where tp ranks have experts whole, each for its own tokens, and add up their gradients."""
        return (self.experts == 1) & (self.expert_tensor > 1)


def division_of(c: Columns) -> Division:
    """Return what divides the parameters of plans, shards as torchtitan's meshes do.

    Vocabularies that tp does not divide are whole, unless they are padded; as is usual where nothing is
    known. torchtitan splits what it sends to experts over tp (``ReordererSequenceParallel``), and as much
    comes back from the other ranks. Without ep it is the stack's whether tp divides experts; whole ones may
    be given the stretch of the sequence that a rank has.
    """
    tp, ep, dense = c.tp, c.ep, c.dp_shard * c.cp
    apart = common(ep > 1)
    vocabulary, width = tp, where(apart | c.divides_experts, tp, 1)
    tokens = width
    if c.has("token_heads"):
        attends = (c.token_heads % tp == 0) | (tp % c.token_heads == 0)
        tokens = where(c.sequence_parallel & attends, tp, width)
    if c.has("vocab") and c.has("pads_vocabulary"):
        vocabulary = where(common(c.pads_vocabulary | (c.vocab % tp == 0)), tp, 1)
    return Division(
        tp,
        vocabulary,
        where(apart, ep, width),
        tokens,
        dense,
        dense if apart is False else where(apart, dense * tp / ep, dense),
    )


@derived
def division(c: Columns) -> Division:
    """Return what ``division_of`` does, of the same columns at once."""
    return division_of(c)


def shard_ranks(c: Columns) -> tuple[Numbers, Numbers]:
    """Return over how many ranks dense and expert parameters are sharded."""
    return division(c)[-2:]


def divided(totals: ParameterTotals, d: Division) -> tuple[Numbers, Numbers]:
    """Return the dense and the expert parameters that tp and ep leave on one rank; 0 if there are none."""
    if totals is NO_PARAMETERS:
        return 0, 0
    dense, tensor, expert, vocabulary = totals.replicated, totals.tensor, totals.expert, totals.vocabulary
    # to tell another 0 takes longer than to divide it
    if tensor is not NONE:
        dense = dense + tensor / d[0]
    if vocabulary is not NONE:
        dense = dense + vocabulary / d[1]
    if expert is not NONE:
        expert = expert / d[2]
    return dense, expert


def divided_experts(totals: ParameterTotals, d: Division) -> Numbers:
    """Return the expert parameters alone, as ``divided`` does."""
    return totals.expert / d.experts if has_any(totals.expert) else 0


def divided_total(totals: ParameterTotals, d: Division) -> Numbers:
    """Return the parameters that tp and ep leave on one rank, dense and expert."""
    if totals is NO_PARAMETERS:
        return 0
    dense, expert = divided(totals, d)
    return dense if expert is NONE else dense + expert


def along_rows(experts: int | None, ep: Numbers, d: Division) -> Mask:
    """Return where FSDP2 shards the stacks of a rank's experts along their rows.

    That is where their number is no multiple of the ranks that shard them: along the first dimension it
    would pad them (``runtime.data_parallel.own_units``; torchtitan does alike).
    """
    if experts is None:
        return False
    found: Mask = experts / ep % d.expert_shards != 0
    return found


@derived_with
def local(totals: ParameterTotals, c: Columns) -> tuple[Numbers, Numbers]:
    """Return what ``divided`` does of plans."""
    return divided(totals, division(c))


@derived_with
def local_total(totals: ParameterTotals, c: Columns) -> Numbers:
    """Return what ``divided_total`` does of plans."""
    dense, expert = local(totals, c)
    return dense + expert


def sharded_total(parts: tuple[Numbers, Numbers], d: Division, sharded: Mask) -> Numbers:
    """Return dense and expert parameters together, divided over their ranks where they are sharded."""
    dense, expert = parts
    if sharded is False:
        return dense + expert
    found = dense / d.dense_shards if sharded is True else where(sharded, dense / d.dense_shards, dense)
    return found + where(sharded, expert / d.expert_shards, expert) if has_any(expert) else found
