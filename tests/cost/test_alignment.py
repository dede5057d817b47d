"""Products whose matrices' rows are not aligned to 16 bytes, on sides small enough to count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jobs import TERA, block, job, matmul, plan, row

from parastrat.assess import assess, plans_table
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.cost.compute import BlockTimes, block_times
from parastrat.model import Operator, OperatorKind, Split
from parastrat.profiles import load_hardware, load_stack
from parastrat.search import find_plan
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Optimizer, Precision, Workload

#: products take five times as long with rows aligned to 2 bytes, three times with rows aligned to 4 or 8
SLOW = {"aligned_to_four": 3.0, "aligned_to_two": 5.0}
#: the vocabulary that a job of these tests has
WORDS = 250


def times(
    *operators: Operator,
    unit: bool = True,
    stack: dict[str, Any] | None = None,
    precision: Precision = Precision.BF16_MIXED,
    on: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    **changes: Any,
) -> BlockTimes:
    own = block(*operators, unit=unit)
    facts = job(
        own,
        device=SLOW | (on or {}),
        stack={"pads_vocabulary": False, **(stack or {})},
        model={"vocab": WORDS, **(model or {})},
        precision=precision,
    )
    return block_times(facts, (own,), row(**changes))


@pytest.mark.parametrize(
    ("sides", "factor"),
    [
        ({"n": 64, "k": 128}, 1),
        ({"n": 60, "k": 128}, 3),
        ({"n": 58, "k": 128}, 3),
        ({"n": 57, "k": 128}, 5),
        ({"n": 64, "k": 57}, 5),
        # the less aligned of the two
        ({"n": 60, "k": 57}, 5),
        # no row is as long as there are tokens
        ({"n": 64, "k": 128, "m": 57}, 1),
        # nothing is known of a side, or it is a vector's
        ({"n": 0, "k": 0}, 1),
        ({"n": 1, "k": 64}, 1),
    ],
)
def test_products_take_longer_by_what_their_rows_are_aligned_to(
    sides: dict[str, int], factor: float
) -> None:
    found = times(matmul(TERA, **({"m": 64} | sides)))
    assert found.matmul_forward == pytest.approx(factor)
    assert found.matmul_backward == pytest.approx(2 * factor)
    assert found.matmul_weights == pytest.approx(factor)


@pytest.mark.parametrize(
    ("side", "sides", "tp", "factor"),
    [
        ("n", {"n": 64, "k": 128}, 8, 1),
        ("n", {"n": 64, "k": 128}, 16, 3),
        ("k", {"n": 64, "k": 128}, 32, 3),
        ("n", {"n": 24, "k": 128}, 8, 5),
        # what tp does not divide is whole
        ("n", {"n": 250, "k": 128}, 4, 3),
        ("n", {"n": 251, "k": 128}, 2, 5),
    ],
)
def test_a_rank_has_rows_of_what_tp_leaves(
    side: str, sides: dict[str, int], tp: int, factor: float
) -> None:
    divided = matmul(TERA, split=Split.TENSOR, split_side=side, **sides)
    assert times(divided, tp=tp).matmul_forward == pytest.approx(factor / tp)


def test_each_plan_has_rows_of_its_own() -> None:
    own = block(matmul(TERA, n=64, k=128, split=Split.TENSOR, split_side="n"))
    facts = job(own, device=SLOW)
    several = plans_table([plan(tp=tp) for tp in (1, 8, 16, 8)])
    c = Columns({"divides_experts": True, "pads_vocabulary": True, **several})
    found = block_times(facts, (own,), c).matmul_forward
    assert found == pytest.approx(np.array([[1, 1 / 8, 3 / 16, 1 / 8]]))


def test_experts_are_whole_under_expert_parallelism() -> None:
    expert = matmul(
        TERA, kind=OperatorKind.GROUPED_MATMUL, m=64, n=24, k=128, split=Split.EXPERT, split_side="n"
    )

    def factor(**changes: Any) -> float:
        slow, plain = (
            times(expert, on=on, model={"experts": 8}, **changes).matmul_forward.item()
            for on in ({}, dict.fromkeys(SLOW))
        )
        return float(slow / plain)

    assert factor(tp=2, dp_shard=4, ep=8) == pytest.approx(1)
    assert factor(tp=2) == pytest.approx(3)


def test_a_stack_that_pads_the_vocabulary_has_aligned_logits() -> None:
    logits, other = matmul(TERA, n=WORDS, k=128), matmul(TERA, n=WORDS - 2, k=126)
    pads = {"pads_vocabulary": True}
    assert times(logits, unit=False).matmul_forward == pytest.approx(3)
    assert times(logits, unit=False, stack=pads).matmul_forward == pytest.approx(1)
    assert times(other, unit=False, stack=pads).matmul_forward == pytest.approx(3)
    # a layer that happens to be as wide is no vocabulary
    assert times(logits, stack=pads).matmul_forward == pytest.approx(3)
    assert times(logits, unit=False, stack=pads, model={"vocab": None}).matmul_forward == pytest.approx(3)


def test_a_compiler_pads_the_blocks_that_it_compiles() -> None:
    odd = matmul(TERA, n=57, k=128)
    compiled = {"kernels": Kernels.COMPILED}
    assert times(odd, stack=compiled).matmul_forward == pytest.approx(1)
    assert times(odd, unit=False, stack=compiled).matmul_forward == pytest.approx(5)


@pytest.mark.parametrize(
    ("precision", "native", "factor"),
    [
        (Precision.BF16, True, 5),
        (Precision.FP16_MIXED, True, 5),
        (Precision.FP16_MIXED, False, 5),
        # emulated in fp32
        (Precision.BF16_MIXED, False, 1),
        (Precision.FP32, True, 1),
        # logits stay in bf16
        (Precision.FP8, True, 5),
    ],
)
def test_formats_of_two_bytes_are_slower(precision: Precision, native: bool, factor: float) -> None:
    odd = matmul(TERA, n=57, k=128)
    found = times(odd, unit=False, precision=precision, on={"bf16_native": native})
    assert found.matmul_forward == pytest.approx(factor)


def test_products_in_fp8_have_no_other_sides() -> None:
    assert times(matmul(TERA, n=57, k=128), precision=Precision.FP8).matmul_forward == pytest.approx(1)


def test_a_library_lays_images_out_for_convolutions() -> None:
    odd = matmul(TERA, kind=OperatorKind.CONVOLUTION, n=57, k=147)
    relaid = {"channels_last": True}
    assert times(odd, stack=relaid).matmul_forward == pytest.approx(1)


def facts_of(model: str, stack: str = "torch", **unaligned: float | None) -> Facts:
    hardware = load_hardware("dgx-a100")
    own, precision = load_stack(stack), Precision.BF16_MIXED
    return Facts(
        model=load_source(model).at(1024, precision, own.kernels),
        hardware=replace(hardware, device=replace(hardware.device, **unaligned)),
        workload=Workload(
            global_batch_size=64, sequence_length=1024, optimizer=Optimizer.ADAMW, precision=precision
        ),
        stack=own,
    )


@pytest.mark.parametrize(
    ("model", "stack"), [("llama-3.1-8b", "torch"), ("gpt2", "megatron-core"), ("gpt-oss-20b", "torch")]
)
def test_aligned_models_take_as_long_as_ever_to_the_last_bit(model: str, stack: str) -> None:
    slow = facts_of(model, stack)
    plain = facts_of(model, stack, aligned_to_four=None, aligned_to_two=None)
    assert slow.hardware.device.aligned_to_two == 3
    found, known = find_plan(slow), find_plan(plain)
    assert found.chosen is not None
    assert known.chosen is not None
    assert found.chosen.plan == known.chosen.plan
    assert found.chosen.estimate == known.chosen.estimate


def test_padding_gpt2_gives_a_quarter_of_a_step_on_an_a100() -> None:
    # about 25 % for nanoGPT on A100s: https://x.com/karpathy/status/1621578354024677377
    facts = facts_of("gpt2")
    padded = replace(facts, stack=replace(facts.stack, pads_vocabulary=True))
    own = plan(dp_replicate=8, micro_batch_size=8)
    here, there = (assess(each, own).estimate.time.step for each in (facts, padded))
    assert 1.2 < here / there < 1.4
