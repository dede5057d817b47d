"""PS226, PS814 and PS815: layers that scan their sequence (Mamba-2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.finding import Hit, Severity
from parastrat.rules.divisors import either, nearest_divisors, ranks_beside
from parastrat.rules.rule import plan_rule
from parastrat.scans import Scans

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/core/ssm"


def _scans(case: Case) -> Scans:
    return case.model.scans or Scans(heads=1, groups=1, divided=False)


@plan_rule("PS226", Severity.ERROR, source=f"{_MEGATRON}/mamba_mixer.py#L262")
def scans_do_not_divide(p: Columns) -> Mask:
    """The heads and the groups of scans must divide evenly over tp.

    Heads of one group share what is projected for their states. A rank has whole heads with all of their
    group, or its part of the layer would need another rank's projections: Megatron-Core refuses.
    """
    return (p.scan_heads % p.tp != 0) | (p.scan_groups % p.tp != 0)


@scans_do_not_divide.message
def _(case: Case) -> Hit:
    tp, scans = case.plan.mesh.tp, _scans(case)
    choices = nearest_divisors(tp, scans.heads, scans.groups, ranks_beside(case.plan.mesh))
    return Hit(
        message=f"{scans.heads} heads in {scans.groups} groups of scans cannot be split over tp={tp}",
        fix=f"use tp {either(choices)}",
    )


@plan_rule("PS814", Severity.ERROR, source=f"{_MEGATRON}/mamba_context_parallel.py#L106")
def scans_do_not_divide_over_context(p: Columns) -> Mask:
    """The heads that tp leaves of scans must divide evenly over cp.

    A scan goes through whole sequences. Under context parallelism each rank takes all tokens of a part of
    the heads, and gives them back behind it; groups are divided too, or copied.
    """
    groups = p.scan_groups / p.tp
    uneven = (p.scan_heads % (p.tp * p.cp) != 0) | ((groups % p.cp != 0) & (p.cp % groups != 0))
    return (p.cp > 1) & uneven


@scans_do_not_divide_over_context.message
def _(case: Case) -> Hit:
    mesh, scans, length = case.plan.mesh, _scans(case), case.workload.sequence_length
    heads, groups = (max(number // mesh.tp, 1) for number in (scans.heads, scans.groups))

    def can_run(cp: int) -> bool:
        # attention beside scans takes two pieces of every sequence (PS811)
        whole = cp == 1 or length is None or length % (2 * cp) == 0
        return whole and (groups % cp == 0 or cp % groups == 0)

    # what another cp leaves of the ranks, or takes more of them, are data axes
    choices = nearest_divisors(mesh.cp, heads, mesh.dp * mesh.cp, allowed=can_run)
    return Hit(
        message=f"{scans.heads} heads in {scans.groups} groups of scans cannot be split over tp={mesh.tp} "
        f"and cp={mesh.cp}",
        fix=f"use cp {either(choices)}",
    )


@plan_rule("PS815", Severity.ERROR, source="https://arxiv.org/abs/2405.21060")
def scans_of_parts_of_sequences(p: Columns) -> Mask:
    """Layers that scan a sequence need all of it.

    Context parallelism in torch divides attention alone. A scan over a part of the sequence would begin
    without the state that the tokens before it leave, and compute something else.
    """
    return (p.cp > 1) & (p.whole_scans == 1)


@scans_of_parts_of_sequences.message
def _(case: Case) -> Hit:
    cp = case.plan.mesh.cp
    return Hit(
        message=f"cp={cp} gives each rank a part of the sequences that {case.model.name} scans",
        fix="use cp 1, or --stack megatron-core, which divides heads instead",
    )
