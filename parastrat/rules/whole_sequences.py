"""PS397: models whose sequences ``auto_parallelize`` does not divide over cp."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.case import Case, stated
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import plan_rule

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.units import Mask

_SDPA = (
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html"
)

#: what runs a plan that neither ``auto_parallelize`` nor torchtitan does
ELSEWHERE = "a framework that has both this model and these axes"


@plan_rule("PS397", Severity.INFO, source=_SDPA)
def context_of_attention_without_kernel(p: Columns) -> Mask:
    """Context parallelism is applied where blocks attend by scaled_dot_product_attention, all alike.

    A rank gives that kernel its own queries, and the keys and values of all ranks. Models of transformers
    that add something to scores which no kernel takes, as sinks (gpt-oss), a cap (Gemma 2) or a bias by
    batched products (BLOOM), do without it; and layers of Llama 4 count positions each in another way. Such
    plans are searched and estimated all the same: another framework may have a kernel for them.
    """
    return (p.cp > 1) & p.whole_sequences


@context_of_attention_without_kernel.message
def _(case: Case) -> Hit:
    name = stated(case.model, "name") or "this model"
    return Hit(
        message=f"auto_parallelize does not apply cp {case.plan.mesh.cp} to {name}: what its layers do "
        "with positions cannot be divided",
        fix="shorten sequences, or use tp instead of cp: take what `parastrat recommend --applied` finds, "
        f"or run this plan with {ELSEWHERE}",
    )
