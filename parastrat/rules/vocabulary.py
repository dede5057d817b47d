"""PS415: a vocabulary whose logits tensor cores read slowly."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, lcm
from typing import TYPE_CHECKING

from parastrat.finding import Hit, Severity
from parastrat.hardware import ALIGNED_ELEMENTS
from parastrat.rules.rule import case_rule

if TYPE_CHECKING:
    from parastrat.case import Case

#: what a vocabulary is padded to, or to a multiple of
_USUAL = 64
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
    if case.stack.pads_vocabulary or held % ALIGNED_ELEMENTS == 0:
        return None
    from parastrat.assess import assess  # noqa: PLC0415 - rules about files need no estimates

    padding = replace(case.facts, stack=replace(case.stack, pads_vocabulary=True))
    step = case.estimate.time.step
    less = step - assess(padding, case.plan).estimate.time.step
    if less < _WORTH * step:
        return None
    multiple = lcm(_USUAL, ALIGNED_ELEMENTS * tp)
    padded = ceil(vocab / multiple) * multiple
    rows = f"the vocabulary of {vocab:,}" + (f" over tp={tp}" if tp > 1 else "")
    return Hit(
        message=f"{rows} is no multiple of {ALIGNED_ELEMENTS}: padded to {padded:,}, a step would take "
        f"about {100 * less / step:.0f} % less",
        fix=f"call model.resize_token_embeddings(pad_to_multiple_of={multiple}) of transformers, or build "
        f"the model with {padded:,} tokens, before it is wrapped",
    )
