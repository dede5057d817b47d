"""PS223, PS224, PS227: tensor parallelism of models without heads, and of modules that were traced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.finding import Hit, Severity
from parastrat.model import Family
from parastrat.rules.divisors import either, nearest_divisors, ranks_beside
from parastrat.rules.rule import case_rule, plan_rule

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask


@plan_rule("PS223", Severity.ERROR, source="https://arxiv.org/abs/1909.08053")
def tensor_parallel_without_heads(p: Columns) -> Mask:
    """Tensor parallelism here means splitting attention heads and the layers around them.

    A model without heads, such as a convolutional network, has no such plan: its channels could be split,
    but no framework that parastrat knows does so. Data parallelism serves these models.
    """
    return (p.tp > 1) & (p.without_heads == 1)


@tensor_parallel_without_heads.message
def _(case: Case) -> Hit:
    tp = case.plan.mesh.tp
    return Hit(
        message=f"tp={tp} for {case.model.name}, which has no attention heads",
        fix=f"use tp 1, and the {tp} ranks for ddp or fsdp2",
    )


@case_rule(
    "PS224", Severity.INFO, source="https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html"
)
def tensor_parallel_of_a_module(case: Case) -> Hit | None:
    """What tensor parallelism divides of a module is proven when it is wrapped.

    `auto_parallelize` follows the data through the module, divides what can be divided, and proves it on a
    small copy. The estimate of a traced module takes as divided what its data flow suggests; what then
    fails the proof stays whole, and needs more. Where nothing is suggested nothing is taken as divided.
    """
    tp, model = case.plan.mesh.tp, case.model
    if tp == 1 or model.heads is not None or model.family is not Family.MODULE:
        return None
    seen = "what its data flow suggests" if model.divisible else "nothing of it"
    return Hit(
        message=f"{model.name} is estimated as if tp={tp} divided {seen}",
        fix="see what is divided, when it runs, with parastrat.explain_wrapping(model)",
    )


@plan_rule("PS227", Severity.ERROR, source="https://arxiv.org/abs/1909.08053")
def module_does_not_divide(p: Columns) -> Mask:
    """The heads and features that tensor parallelism divides of a module must divide evenly over tp.

    They are those between the columns and rows that its data flow shows. A layer with a remainder would
    stay whole on every rank, and the estimate takes it as divided.
    """
    return p.divisible % p.tp != 0


@module_does_not_divide.message
def _(case: Case) -> Hit:
    tp, sizes = case.plan.mesh.tp, case.model.divisible or 1
    choices = nearest_divisors(tp, sizes, ranks_beside(case.plan.mesh))
    return Hit(
        message=f"what tp divides of {case.model.name} comes in {sizes} parts, not in multiples of {tp}",
        fix=f"use tp {either(choices)}, which divide{'s' if len(choices) == 1 else ''} {sizes}",
    )
