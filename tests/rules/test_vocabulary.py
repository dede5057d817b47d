from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from jobs import plan

from parastrat.assess import assess, columns_of
from parastrat.case import Facts
from parastrat.profiles import load_hardware, load_stack
from parastrat.rules import findings_of
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

if TYPE_CHECKING:
    from parastrat.finding import Finding


def found(model: str, stack: str = "torch", on: str = "dgx-a100", tp: int = 1) -> Finding | None:
    """Return what PS415 says of a model on eight devices."""
    own, precision = load_stack(stack), Precision.BF16_MIXED
    facts = Facts(
        model=load_source(model).at(512, precision, own.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=128, sequence_length=512, optimizer=Optimizer.ADAMW, precision=precision
        ),
        stack=own,
    )
    case = assess(facts, plan(dp_replicate=8 // tp, tp=tp, micro_batch_size=16 * tp))
    findings = findings_of(case, columns_of(case))
    return next((each for each in findings if each.code == "PS415"), None)


def test_vocabulary_is_not_aligned() -> None:
    odd, even = found("gpt2"), found("bert-base")
    assert odd is not None
    assert "50,257 is no multiple of 8: padded to 50,304, a step would take about 2" in odd.message
    assert "pad_to_multiple_of=64" in odd.fix
    assert even is not None
    assert "padded to 30,528" in even.message


@pytest.mark.parametrize(
    ("model", "stack", "on", "tp"),
    [
        ("llama-3.1-8b", "torch", "dgx-a100", 1),
        # Megatron pads it
        ("gpt2", "megatron-core", "dgx-a100", 1),
        # nobody stated what these devices lose
        ("gpt2", "torch", "nd96isr-mi300x-v5", 1),
        ("vit-b-16", "torch", "dgx-a100", 1),
        # 50,272 over 4 ranks are 12,568 rows each
        ("opt-125m", "torch", "dgx-a100", 4),
    ],
)
def test_vocabulary_is_aligned(model: str, stack: str, on: str, tp: int) -> None:
    assert found(model, stack, on, tp) is None


def test_vocabulary_is_not_aligned_on_a_rank() -> None:
    # 50,272 over 8 ranks are 6,284 rows each
    said = found("opt-125m", tp=8)
    assert said is not None
    assert "50,272 over tp=8 is no multiple of 8: padded to 50,304" in said.message
