"""Attention's kernels: their rates by what each has, and their backward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jobs import TERA, block, job, row

from parastrat.columns import Columns
from parastrat.cost.compute import BlockTimes, block_times
from parastrat.hardware import AttentionCurve, MatmulCurve
from parastrat.model import Operator, OperatorKind, Split
from parastrat.stack import Attention, Kernels
from parastrat.workload import Precision

#: half of the rate is left at 1,000 keys, 2,000 rows and heads of 32
CURVE = AttentionCurve(keys_half=1000, rows_half=2000, width_half=32)
#: what that leaves where rates are stated: of 4,096 keys, 2^20 rows and heads of 128
REFERENCE = (1 + 1000 / 4096) * (1 + 2000 / 2**20) * (1 + 32 / 128)
HOPPER = {"attention_efficiency": 0.25, "newest_attention_efficiency": 0.5}
#: scores are kept between products
SCORES = {"kernels": Kernels.FUSED_MATH, "elementwise_factor": 1.5, "dispatched_factor": 1.1}


def attention(flops: float = TERA, **shape: int) -> Operator:
    return Operator(
        kind=OperatorKind.ATTENTION, flops=flops, bytes=0, weighted=False, split=Split.TENSOR, **shape
    )


def times(
    operator: Operator, on: dict[str, Any] | None = None, stack: dict[str, Any] | None = None, **plan: Any
) -> BlockTimes:
    own = block(operator)
    return block_times(job(own, device=on or {}, stack=stack or {}), (own,), row(**plan))


def forward(operator: Operator, on: dict[str, Any] | None = None, **stack: Any) -> float:
    return float(times(operator, on, stack).attention_forward.item())


def test_attention_has_its_own_rate_and_a_slower_backward_of_five_products_for_two() -> None:
    found = times(attention(), {"attention_efficiency": 0.25}, micro_batch_size=3)
    assert found.forward == pytest.approx(3 * 4)
    # arXiv:2307.08691, section 4.1: 5/2 of the FLOPs, at 0.92 of the rate
    assert found.backward == pytest.approx(3 * 4 * 2.5 / 0.92)


def test_stacks_take_the_devices_newest_attention_or_an_older_one() -> None:
    assert forward(attention(), HOPPER) == pytest.approx(4)
    assert forward(attention(), HOPPER, attention=Attention.NEWEST) == pytest.approx(2)
    # whose backward has five products for two at 0.79 of the rate
    newest = times(attention(), HOPPER, {"attention": Attention.NEWEST})
    assert newest.backward == pytest.approx(2 * 2.5 / 0.79)
    # a device without any
    only = {"attention_efficiency": 0.25}
    assert forward(attention(), only, attention=Attention.NEWEST) == pytest.approx(4)
    assert forward(attention(), HOPPER, attention_factor=0.8) == pytest.approx(5)


def test_the_first_has_a_rate_of_its_own_and_the_slowest_backward() -> None:
    found = times(attention(), HOPPER | {"first_attention_efficiency": 0.2}, {"attention": Attention.FIRST})
    assert found.forward == pytest.approx(5)
    # twice the second's, whose forward takes 1 / 1.4
    assert found.backward == pytest.approx(5 * 2.5 / 0.92 * 2 / 1.4)


def test_a_stack_may_know_another_rate_of_a_device_for_attention_and_products() -> None:
    own = job(block(attention())).hardware.device.name
    rates = {"device_rates": ((own, 0.8), ("another", 0.5))}
    assert forward(attention(), HOPPER, **rates) == pytest.approx(5)
    product = Operator(kind=OperatorKind.MATMUL, flops=TERA, bytes=0, m=64, n=64, k=64)
    found, faster = (times(product, None, each).forward for each in (rates, {}))
    assert found == pytest.approx(faster / 0.8)
    scores = attention(m=64, n=64, k=64)
    kept, others = {"kernels": Kernels.FUSED_MATH}, {"device_rates": (("another", 0.5),)}
    slower, as_told = (forward(scores, HOPPER, **kept, **each) for each in (rates, others))
    assert slower == pytest.approx(as_told / 0.8)


def test_flex_attention_has_a_rate_of_its_own_where_it_is_known() -> None:
    on = HOPPER | {"flex_attention_efficiency": 0.2}
    found = times(attention(), on, {"attention": Attention.FLEX})
    assert found.forward == pytest.approx(5)
    assert found.backward == pytest.approx(5 * 2.5 / 0.92)
    assert forward(attention(), HOPPER, attention=Attention.FLEX) == pytest.approx(4)
    assert forward(attention(), HOPPER, attention=Attention.FIRST) == pytest.approx(4)


def test_kernels_that_drop_scores_are_the_newest_and_slower() -> None:
    found = times(attention(), HOPPER, {"attention": Attention.DROPPING})
    newest = times(attention(), HOPPER, {"attention": Attention.NEWEST})
    assert found.forward == pytest.approx(newest.forward / 0.80)
    assert found.backward == pytest.approx(newest.backward / 0.65)


@pytest.mark.parametrize(
    ("shape", "slower"),
    [
        ({"m": 2**20, "n": 4096, "k": 128}, REFERENCE),
        ({"m": 2**20, "n": 1000, "k": 128}, 2 * REFERENCE / (1 + 1000 / 4096)),
        ({"m": 2000, "n": 4096, "k": 128}, 2 * REFERENCE / (1 + 2000 / 2**20)),
        ({"m": 2**20, "n": 4096, "k": 32}, 2 * REFERENCE / (1 + 32 / 128)),
        # large where nothing is known
        ({}, REFERENCE),
    ],
)
def test_kernels_with_little_of_a_side_are_slower(shape: dict[str, int], slower: float) -> None:
    assert forward(attention(**shape), {"attention": CURVE}) == pytest.approx(2 * slower / REFERENCE)


def test_a_kernel_has_the_rows_of_all_its_samples() -> None:
    whole = forward(attention(4 * TERA, m=8000, n=4096, k=128), {"attention": CURVE})
    # a quarter of that each, of which a rank has as many samples as ranks share them
    some = attention(m=2000, n=4096, k=128)
    assert times(some, {"attention": CURVE}, micro_batch_size=4).attention_forward == pytest.approx(whole)
    shared = times(some, {"attention": CURVE}, micro_batch_size=8, tp=2).attention_forward
    assert shared == pytest.approx(whole)


def test_the_newest_kernels_have_a_curve_of_their_own() -> None:
    short = attention(m=2**20, n=1000, k=128)
    curves = {"newest_attention": CURVE, "attention": AttentionCurve(keys_half=3000)}
    newest = forward(short, HOPPER | curves, attention=Attention.NEWEST)
    assert newest == pytest.approx(2 * 2 / (1 + 1000 / 4096))
    assert forward(short, HOPPER | curves) == pytest.approx(4 * 4 / (1 + 3000 / 4096))


def test_scores_that_are_kept_are_products_with_the_matmuls_curve() -> None:
    curve = MatmulCurve(ceiling=0.5, m_half=7, n_half=100, k_half=50)
    stack = {"kernels": Kernels.FUSED_MATH, "attention_factor": 0.8}
    found = times(attention(m=2048, n=1000, k=100), {"matmul": curve, "attention": CURVE}, stack)
    half = TERA / 2 / (TERA * 0.5 * 0.8)
    scores = half * (1 + 100 / 1000) * (1 + 50 / 100)
    others = half * (1 + 100 / 100) * (1 + 50 / 1000)
    assert found.attention_forward == pytest.approx(scores + others)
    # the gradient of the scores, and of what both products read
    assert found.attention_backward == pytest.approx(scores + 3 * others)
    # of several plans each has its own samples, which tp divides
    own = block(attention(m=2048, n=1000, k=100))
    facts = job(own, device={"matmul": curve, "attention": CURVE}, stack=stack)
    several = Columns(row().known() | {"micro_batch_size": np.array([3, 4]), "tp": np.array([1, 2])})
    both = block_times(facts, (own,), several)
    assert both.attention_forward[0] == pytest.approx([3 * (scores + others), 2 * (scores + others)])
    assert both.attention_backward[0] == pytest.approx(
        [3 * (scores + 3 * others), 2 * (scores + 3 * others)]
    )


@pytest.mark.parametrize(
    ("keys", "fields", "is_torchs"),
    [
        (1000, {"tp": 4}, True),  # two heads of one sample
        (1000, {"tp": 4, "micro_batch_size": 2}, False),
        (1000, {"tp": 2}, False),
        (1000, {"tp": 2, "cp": 2}, False),
        (1000, {"tp": 4, "micro_batch_size": 3}, True),
        (1002, {}, True),
        (16, {}, True),
        (4096, {}, False),
        (8192, {}, True),
    ],
)
def test_megatrons_softmax_is_torchs_where_its_kernel_does_not_run(
    keys: int, fields: dict[str, int], is_torchs: bool
) -> None:
    own = block(attention(m=2048, n=keys, k=100))
    facts = job(own, stack=SCORES)
    one_kernel, found = (
        block_times(replace(facts, model=replace(facts.model, heads=heads)), (own,), row(**fields))
        for heads in (None, 8)
    )
    # two products with a multiplication and an addition over a head's width
    ranks = fields.get("tp", 1) * fields.get("cp", 1)
    count = TERA / (4 * 100) * fields.get("micro_batch_size", 1) / ranks * is_torchs
    byte_s = count / facts.hardware.device.memory_bytes_per_s
    # cast, multiplied, masked, a softmax, and cast again, instead of read and written
    forward = (6 + 8 + 9 + 8 + 6) * 1.1 - 4 * 1.5
    assert found.attention_forward - one_kernel.attention_forward == pytest.approx(forward * byte_s)
    backward = (6 + 12 + (8 + 9) + 8 + 6) * 1.1 - 6 * 1.5
    assert found.attention_backward - one_kernel.attention_backward == pytest.approx(backward * byte_s)
    launch_s = facts.hardware.device.launch_s * facts.stack.launches_per_dispatch
    launched = found.launch_forward - one_kernel.launch_forward
    assert launched == pytest.approx(4 * launch_s * is_torchs)


def test_megatrons_kernel_takes_no_fp32() -> None:
    own = block(attention(m=2048, n=1000, k=100))
    facts = job(own, stack=SCORES, precision=Precision.FP32)
    one_kernel, found = (
        block_times(replace(facts, model=replace(facts.model, heads=heads)), (own,), row())
        for heads in (None, 8)
    )
    byte_s = TERA / (4 * 100) / facts.hardware.device.memory_bytes_per_s
    more = found.attention_forward - one_kernel.attention_forward
    assert more == pytest.approx(((8 + 9 + 8) * 1.1 - 8 * 1.5) * byte_s)
    more = found.attention_backward - one_kernel.attention_backward
    assert more == pytest.approx(((12 + (8 + 9) + 8) * 1.1 - 12 * 1.5) * byte_s)


def test_traced_modules_have_their_own_softmax() -> None:
    own = block(attention(m=2048, n=1000, k=100))
    facts = job(own, stack=SCORES)
    traced = replace(facts, model=replace(facts.model, heads=8, dispatched=True))
    one_kernel = block_times(replace(traced, model=replace(traced.model, heads=None)), (own,), row(tp=4))
    assert block_times(traced, (own,), row(tp=4)).attention_forward == one_kernel.attention_forward


def test_each_of_several_plans_has_its_own_attention() -> None:
    own = block(attention(m=2000, n=4096, k=128))
    facts = job(own, device={"attention": CURVE})
    several = Columns(
        {name: np.full(2, value) for name, value in row().known().items()}
        | {"micro_batch_size": np.array([1, 4])}
    )
    found = block_times(facts, (own,), several).attention_forward[0]
    alone = [
        float(block_times(facts, (own,), row(micro_batch_size=size)).attention_forward.item())
        for size in (1, 4)
    ]
    assert found == pytest.approx(alone)


def test_attention_of_several_passes_counts_as_often() -> None:
    one = attention(m=2**20, n=1000, k=128)
    assert forward(replace(one, count=3), {"attention": CURVE}) == pytest.approx(
        3 * forward(one, {"attention": CURVE})
    )
