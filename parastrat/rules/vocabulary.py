"""PS415: a vocabulary whose logits tensor cores read slowly."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, lcm
from typing import TYPE_CHECKING

from parastrat.finding import Hit, Severity
from parastrat.rules.rule import case_rule
from parastrat.tables import facts_columns, plan_columns

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.plan import Plan

#: elements of a short format in what vector loads take at once, and what the vocabulary is padded to
_ALIGNED, _USUAL = 8, 64
#: share of a step below which padding is not worth a remark
_WORTH = 0.01


@case_rule(
    "PS415",
    Severity.WARNING,
    source="https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/"
    "index.html#requirements-tc",
)
def vocabulary_is_not_aligned(case: Case) -> Hit | None:
    """Pad a vocabulary to a multiple of 64.

    The kernels that reach the rate of tensor cores load 16 bytes at once, eight elements of a short format,
    and so need rows that begin at multiples of them. Logits have rows as long as the vocabulary. Where that
    is no multiple of 8, their product and both of backward take up to twice as long on a GPU of a data
    centre, and three times where it is odd, as GPT-2's 50,257 is. What pads it stands for tokens that never
    occur.

    Megatron pads by itself, transformers and torchtitan do not. torch.compile pads what it compiles: the
    head where that is the whole model, and not where it is each block.
    """
    tp, vocab = case.plan.mesh.tp, case.model.vocab or 0
    held = vocab // tp if vocab % tp == 0 else vocab
    if case.stack.pads_vocabulary or held % _ALIGNED == 0:
        return None
    step = _step_s(case.facts, case.plan)
    less = step - _step_s(replace(case.facts, stack=replace(case.stack, pads_vocabulary=True)), case.plan)
    if less < _WORTH * step:
        return None
    multiple = lcm(_USUAL, _ALIGNED * tp)
    padded = ceil(vocab / multiple) * multiple
    rows = f"the vocabulary of {vocab:,}" + (f" over tp={tp}" if tp > 1 else "")
    return Hit(
        message=f"{rows} is no multiple of {_ALIGNED}: padded to {padded:,}, a step would take about "
        f"{100 * less / step:.0f} % less",
        fix=f"call model.resize_token_embeddings(pad_to_multiple_of={multiple}) of transformers, or build "
        f"the model with {padded:,} tokens, before it is wrapped",
    )


def _step_s(facts: Facts, plan: Plan) -> float:
    """Return the seconds of a plan's step."""
    import numpy as np  # noqa: PLC0415 - rules about files need neither

    from parastrat.columns import Columns  # noqa: PLC0415
    from parastrat.cost import step_s  # noqa: PLC0415

    row = {name: np.array([value]) for name, value in plan_columns(plan).items()}
    return float(step_s(facts, Columns(facts_columns(facts) | row))[0])
