"""What convolutions take that other products do not, counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs import TERA, block, job, matmul, row

from parastrat.cost.compute import BlockTimes, block_times
from parastrat.hardware import MatmulCurve, Rates
from parastrat.model import Operator, OperatorKind
from parastrat.stack import Kernels
from parastrat.workload import Precision

#: half of the rate is reached at sides of 100, 50 and 75
CURVE = MatmulCurve(ceiling=1.0, m_half=100, n_half=50, k_half=75)
VOLTA = {"sustained": Rates(fp32=TERA, fp16=8 * TERA)}
AMPERE = {"sustained": Rates(fp32=TERA, tf32=4 * TERA, bf16=8 * TERA)}


def convolution(flops: float, **changes: Any) -> Operator:
    return matmul(flops, kind=OperatorKind.CONVOLUTION, **changes)


def times(
    operator: Operator,
    *,
    precision: Precision,
    on: dict[str, Any],
    dispatched: bool = False,
    **stack: Any,
) -> BlockTimes:
    facts = job(block(operator), device=on, stack=stack, precision=precision)
    facts = replace(facts, model=replace(facts.model, dispatched=dispatched))
    return block_times(facts, (block(operator),), row())


def test_an_image_that_a_filter_reads_nine_times_is_moved_once() -> None:
    shape = {"m": 100, "n": 50, "k": 75}
    own = {"matmul": CURVE, "sustained": Rates(bf16=TERA)}
    setting: dict[str, Any] = {"precision": Precision.BF16_MIXED, "on": own, "channels_last": True}
    found = times(convolution(TERA, reuse=9, **shape), **setting)
    # the image is the wide side of forward, what the input's gradient writes, the rows of the weights'
    of_input, of_weights = 2 * (1 + 50 / 75) * (1 + 75 / 9 / 50), (1 + 100 / 9 / 50) * (1 + 50 / 75) * 1.75
    assert found.matmul_forward == pytest.approx(2 * (1 + 1 / 9) * 2)
    assert found.matmul_backward == pytest.approx(of_input + of_weights)
    # nine readings of a product's rows come from memory; strides leave no image out
    for other in (matmul(TERA, **shape), convolution(TERA, reuse=0.25, **shape)):
        assert times(other, **setting).matmul_forward == pytest.approx(8)


def test_halves_are_shorter_at_a_lower_rate_for_twice_the_bytes() -> None:
    # an eighth of the rate, twice the bytes: a quarter
    on = {"matmul": CURVE} | VOLTA
    found = times(matmul(TERA, m=25, n=12.5, k=18.75), precision=Precision.FP32, on=on)
    assert found.matmul_forward == pytest.approx(8)
    # a processor multiplies both at one rate: no half is longer than in 16 bits
    found = times(
        matmul(TERA, m=100, n=50, k=75),
        precision=Precision.FP32,
        on={"matmul": CURVE, "sustained": Rates(fp32=TERA, bf16=TERA)},
    )
    assert found.matmul_forward == pytest.approx(8)
    # tensor cores read fp32 at half of their rate
    found = times(
        convolution(TERA, m=100, n=50, k=75), precision=Precision.FP32, on={"matmul": CURVE} | AMPERE
    )
    assert found.matmul_forward == pytest.approx(8 / 4)


@pytest.mark.parametrize(
    ("precision", "on", "seconds"),
    [
        # Winograd's transform of 3 x 3 at every pixel has 16 multiplications for 36
        (Precision.FP32, VOLTA, 16 / 36),
        (Precision.FP16_MIXED, VOLTA, 1 / 8),
        # in tensor cores, which torch lets convolutions read fp32 in
        (Precision.FP32, AMPERE, 1 / 4),
        (Precision.BF16_MIXED, AMPERE, 1 / 8),
    ],
)
def test_three_by_three_at_every_pixel_is_transformed_in_full_fp32(
    precision: Precision, on: dict[str, Any], seconds: float
) -> None:
    found = times(convolution(TERA, reuse=9), precision=precision, on=on)
    assert found.matmul_forward == pytest.approx(seconds)
    assert found.matmul_backward == pytest.approx(2 * seconds)
    strided = times(convolution(TERA, reuse=9 / 4), precision=precision, on=on)
    assert strided.matmul_forward == pytest.approx(1 if seconds == 16 / 36 else seconds)


def test_matrix_products_stay_in_full_fp32() -> None:
    assert times(matmul(TERA), precision=Precision.FP32, on=AMPERE).matmul_forward == pytest.approx(1)


@pytest.mark.parametrize(
    ("precision", "on", "stack", "moved"),
    [
        # in and out, each read and written, of 2 bytes
        (Precision.BF16_MIXED, AMPERE, {}, 2 * 2 * (100 * 90 / 9 + 100 * 10)),
        (Precision.FP32, AMPERE, {}, 2 * 4 * (100 * 90 / 9 + 100 * 10)),
        (Precision.FP32, AMPERE, {"channels_last": True}, 2 * 4 * (100 * 90 / 9 + 100 * 10)),
        (Precision.BF16_MIXED, AMPERE, {"channels_last": True}, 0),
        (Precision.BF16_MIXED, AMPERE, {"kernels": Kernels.COMPILED}, 0),
        (Precision.FP32, VOLTA, {}, 0),
    ],
)
def test_tensor_cores_want_channels_last(
    precision: Precision, on: dict[str, Any], stack: dict[str, Any], moved: float
) -> None:
    on = on | {"memory_bytes_per_s": 1e3}
    found = times(convolution(0, m=100, n=10, k=90, reuse=9), precision=precision, on=on, **stack)
    assert found.matmul_forward == pytest.approx(moved / 1e3)
    assert found.matmul_backward == pytest.approx(2 * moved / 1e3)
    assert found.matmul_weights == pytest.approx(moved / 1e3)


def test_layouts_are_changed_for_convolutions_alone_and_for_every_sample() -> None:
    both = block(convolution(0, m=100, n=10, k=90, reuse=9), matmul(0, m=100, n=10, k=90))
    on = AMPERE | {"memory_bytes_per_s": 1e3}
    facts = job(both, device=on, stack={"dispatched_factor": 1.5}, precision=Precision.BF16_MIXED)
    found = block_times(facts, (both,), row(micro_batch_size=3))
    # as slowly as what torch dispatches moves
    assert found.matmul_forward == pytest.approx(3 * 2 * 2 * (100 * 90 / 9 + 100 * 10) / (1e3 / 1.5))


def test_what_torch_dispatches_moves_what_is_counted() -> None:
    moved = Operator(kind=OperatorKind.ELEMENTWISE, flops=0, bytes=1000, weighted=False)
    setting: dict[str, Any] = {
        "precision": Precision.BF16_MIXED,
        "on": AMPERE | {"memory_bytes_per_s": 1e3},
        "elementwise_factor": 3.0,
        "dispatched_factor": 2.0,
    }
    found = [times(moved, dispatched=dispatched, **setting) for dispatched in (False, True)]
    assert [each.forward for each in found] == pytest.approx([3, 2])
    assert [each.backward for each in found] == pytest.approx([6, 2 * 1.6])
