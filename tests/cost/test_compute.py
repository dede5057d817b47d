"""Every factor of the compute time, on operators small enough to count by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jobs import TERA, block, job, matmul, row

from parastrat.columns import Columns
from parastrat.cost.compute import BlockTimes, block_times
from parastrat.cost.rates import sustained_flops_per_s
from parastrat.errors import ProfileError
from parastrat.hardware import Device, MatmulCurve, Rates
from parastrat.model import Operator, OperatorKind, Split
from parastrat.plan import Recompute
from parastrat.stack import Kernels
from parastrat.workload import Precision

#: half of the rate is reached at a side of 100, 50 and 75
CURVE = MatmulCurve(ceiling=1.25, m_half=100, n_half=50, k_half=75)


def times(*operators: Operator, on: dict[str, Any] | None = None, **plan: Any) -> BlockTimes:
    return block_times(job(block(*operators), device=on or {}), (block(*operators),), row(**plan))


def at(shape: tuple[float, float, float], flops: float) -> float:
    """Seconds of a product of one shape under CURVE."""
    m, n, k = shape
    return flops / TERA / 1.25 * (m + 100) / m * (n + 50) / n * (k + 75) / k


def attention(flops: float) -> Operator:
    return Operator(kind=OperatorKind.ATTENTION, flops=flops, bytes=0, weighted=False)


def elementwise(moved: float, **changes: Any) -> Operator:
    return Operator(kind=OperatorKind.ELEMENTWISE, flops=0, bytes=moved, weighted=False, **changes)


@pytest.mark.parametrize(
    "kind", [OperatorKind.MATMUL, OperatorKind.GROUPED_MATMUL, OperatorKind.CONVOLUTION]
)
def test_products_of_a_micro_batch_take_their_flops(kind: OperatorKind) -> None:
    # 3 products of 2 TFLOP on each of 4 samples at 1 TFLOP/s; backward multiplies twice
    found = times(matmul(2 * TERA, kind=kind, count=3), micro_batch_size=4)
    assert (found.forward, found.backward) == (pytest.approx(24), pytest.approx(48))


def test_a_captured_step_launches_nothing_from_the_host() -> None:
    own = matmul(TERA), elementwise(TERA)

    def forward(**stack: Any) -> Any:
        facts = job(block(*own), device={"launch_s": 0.5}, stack=stack)
        return block_times(facts, (block(*own),), row()).forward

    assert forward() > 2.1
    assert forward(captured=True) == pytest.approx(2)


def test_without_weights_backward_has_one_product() -> None:
    assert times(matmul(TERA, weighted=False)).backward == pytest.approx(1)


def test_a_matmul_reaches_the_curves_share_of_the_rate() -> None:
    # m, n, k at their halves and a third: 1/2 x 1/2 x 1/4 of 1.25
    found = times(matmul(TERA, m=100, n=50, k=25), on={"matmul": CURVE})
    assert found.matmul_forward == pytest.approx(16 / 1.25)


def test_a_stack_and_what_it_knows_of_a_device_are_factors_of_the_rate() -> None:
    own = block(matmul(TERA))
    name = job(own).hardware.device.name
    stack = {"matmul_factor": 0.8, "device_rates": ((name, 0.5),)}
    found = block_times(job(own, device={"matmul": CURVE}, stack=stack), (own,), row())
    plain = block_times(job(own, device={"matmul": CURVE}), (own,), row())
    assert found.matmul_forward == pytest.approx(plain.matmul_forward / 0.8 / 0.5)


def test_backward_products_have_shapes_of_their_own() -> None:
    # of the input m x k x n: 1/2 x 1/3 x 2/5; of the weights n x k x m: 1/3 x 1/3 x 4/7
    found = times(matmul(TERA, m=100, n=50, k=25), on={"matmul": CURVE})
    assert found.matmul_backward == pytest.approx((15 + 63 / 4) / 1.25)


def narrow(
    *operators: Operator,
    unit: bool = True,
    cast_bytes: float = 0,
    four: float | None = None,
    rows: float | None = None,
    stack: dict[str, Any] | None = None,
    capability: str = "9.0",
    **plan: Any,
) -> BlockTimes:
    """Times under fp8, at twice the rate of bf16."""
    own = block(*operators, unit=unit)
    rates = {"sustained": Rates(bf16=TERA, fp8=2 * TERA), "compute_capability": capability}
    stack = {"fp8_cast_bytes": cast_bytes, "elementwise_factor": 2.0, **(stack or {})}
    if four is not None:
        stack |= {"casts_four_bits": True, "fp4_cast_bytes": four or None}
    if rows is not None:
        stack |= {"scales_rows": True, "scaled_rows_factor": rows}
    return block_times(job(own, device=rates, stack=stack, precision=Precision.FP8), (own,), row(**plan))


def test_fp8_multiplies_in_repeated_blocks_alone() -> None:
    assert narrow(matmul(TERA)).matmul_forward == pytest.approx(1 / 2)
    assert narrow(matmul(TERA), unit=False).matmul_forward == pytest.approx(1)


def test_products_of_rows_scaled_by_themselves_are_slower_in_repeated_blocks() -> None:
    assert narrow(matmul(TERA), rows=0.25).matmul_forward == pytest.approx(2)
    assert narrow(matmul(TERA), rows=0.25, unit=False).matmul_forward == pytest.approx(1)


def test_four_bits_are_cast_by_bytes_of_their_own_where_they_are_known() -> None:
    product = matmul(2 * 100 * 20 * 50, m=100, n=20, k=50)
    eight, four = narrow(product, cast_bytes=3), narrow(product, cast_bytes=3, four=7)
    plain = narrow(product).matmul_forward
    assert four.matmul_forward - plain == pytest.approx(7 / 3 * (eight.matmul_forward - plain))
    assert narrow(product, cast_bytes=3, four=0).matmul_forward == eight.matmul_forward


def test_fp8_casts_inputs_and_weights_forward_and_the_outputs_gradient_backward() -> None:
    # 100 x 50 by 50 x 20, five times: 2 x 3 bytes moved for each of 5,000 and 1,000 elements, and of 2,000
    product = matmul(2 * 100 * 20 * 50, m=100, n=20, k=50, count=5)
    plain, found = narrow(product), narrow(product, cast_bytes=3)
    assert found.matmul_forward - plain.matmul_forward == pytest.approx(5 * 6 * 6000 / TERA)
    assert found.matmul_backward - plain.matmul_backward == pytest.approx(5 * 6 * 2000 / TERA)
    ends = narrow(product, cast_bytes=3, unit=False)
    assert ends.matmul_forward == narrow(product, unit=False).matmul_forward


def test_a_tensor_parallel_rank_casts_its_share_of_the_weights() -> None:
    product = matmul(2 * 100 * 20 * 50, m=100, n=20, k=50, split=Split.TENSOR, split_side="n")
    plain, found = narrow(product, tp=2), narrow(product, cast_bytes=3, tp=2)
    # the input is whole on every rank
    assert found.matmul_forward - plain.matmul_forward == pytest.approx(6 * (5000 + 500) / TERA)
    assert found.matmul_backward - plain.matmul_backward == pytest.approx(6 * 1000 / TERA)


@pytest.mark.parametrize(("side", "whole", "gathered"), [("n", 5000, 0), ("k", 2000, 1)])
def test_what_sequence_parallelism_gathers_is_cast_before(side: str, whole: int, gathered: int) -> None:
    # 100 x 50 by 50 x 20: where n is divided the input is gathered, where k is the output's gradient
    product = matmul(2 * 100 * 20 * 50, m=100, n=20, k=50, split=Split.TENSOR, split_side=side)

    def saved(cast_bytes: float = 4, **changes: Any) -> float:
        """Bytes of the gathered elements that two ranks with sequence parallelism save."""
        plain, found = (
            narrow(product, cast_bytes=cast_bytes, tp=2, sequence_parallel=divided, **changes)
            for divided in (False, True)
        )
        seconds = (
            plain.matmul_forward - found.matmul_forward,
            plain.matmul_backward - found.matmul_backward,
        )
        assert seconds[1 - gathered] == pytest.approx(0)
        return float(seconds[gathered].item()) * TERA / 2 / whole

    assert saved() == pytest.approx(4 / 2)
    # with a scale for each row all is cast behind
    assert saved(rows=1.0) == pytest.approx(0)
    # of 4 bytes one writes a transposed copy, which takes 2 by itself
    copying = {"transposed_cast_bytes": 1, "transposes_below": 10}
    assert saved(stack=copying) == pytest.approx(4 - 3 / 2 - 2)
    assert saved(stack=copying, capability="10.0") == pytest.approx(4 / 2)
    assert saved(stack=copying, capability="gfx942") == pytest.approx(4 - 3 / 2 - 2)
    assert saved(cast_bytes=0) == pytest.approx(0)


def test_a_stack_may_cast_weights_once_a_step() -> None:
    product = matmul(2 * 100 * 20 * 50, m=100, n=20, k=50)
    own, rates = block(product), {"sustained": Rates(bf16=TERA, fp8=2 * TERA)}

    def forward(*, cast_bytes: float, once: bool = True) -> Any:
        stack = {"fp8_cast_bytes": cast_bytes, "elementwise_factor": 2.0, "casts_weights_once": once}
        facts = job(own, device=rates, stack=stack, precision=Precision.FP8)
        return block_times(facts, (own,), row()).matmul_forward

    # the input alone
    assert forward(cast_bytes=3) - forward(cast_bytes=0) == pytest.approx(6 * 5000 / TERA)
    assert forward(cast_bytes=0) == forward(cast_bytes=0, once=False)


def test_what_fp8_gives_is_written_in_16_bits_so_that_twice_the_rate_needs_twice_the_depth() -> None:
    product = matmul(TERA, m=100, n=20, k=50)
    own, rates = block(product), Rates(bf16=TERA, fp8=2 * TERA)
    curve = MatmulCurve(ceiling=1.0, m_half=0, n_half=0, k_half=75)

    def found(precision: Precision) -> BlockTimes:
        facts = job(own, device={"sustained": rates, "matmul": curve}, precision=precision)
        return block_times(facts, (own,), row())

    assert found(Precision.BF16_MIXED).matmul_forward == pytest.approx(1 + 75 / 50)
    assert found(Precision.FP8).matmul_forward == pytest.approx((1 + 2 * 75 / 50) / 2)
    # logits stay in bf16
    ends = block(product, unit=False)
    facts = job(ends, device={"sustained": rates, "matmul": curve}, precision=Precision.FP8)
    assert block_times(facts, (ends,), row()).matmul_forward == pytest.approx(1 + 75 / 50)
    # of the input by n, of the weights by m
    assert found(Precision.FP8).matmul_backward == pytest.approx((2 + 2 * 75 / 20 + 2 * 75 / 100) / 2)


def test_products_that_add_gradients_read_and_write_them() -> None:
    curve = MatmulCurve(ceiling=1.0, m_half=0, n_half=0, k_half=75)

    def weights(kind: OperatorKind = OperatorKind.MATMUL, **stack: Any) -> Any:
        own = block(matmul(TERA, kind=kind, m=100, n=20, k=50))
        facts = job(own, device={"matmul": curve}, stack=stack)
        return block_times(facts, (own,), row()).matmul_weights

    assert weights() == pytest.approx(1 + 75 / 100)
    adding: dict[str, Any] = {"adds_gradients": True, "mixed_gradient_bytes": 4}
    # four bytes read and written where two were
    assert weights(**adding) == pytest.approx(1 + 4 * 75 / 100)
    # experts' are added by kernels of their own, for 100 rows each
    added = 2 * 4 * TERA / 2 / 100 / TERA
    assert weights(OperatorKind.GROUPED_MATMUL, **adding) == pytest.approx(1 + 75 / 100 + added)


def test_kernels_may_be_launched_for_each_expert_that_a_rank_holds() -> None:
    routed = block(matmul(0, kind=OperatorKind.GROUPED_MATMUL, count=2), matmul(0))
    facts = job(routed, device={"launch_s": 1.0}, stack={"launches_per_expert": 5.0}, model={"experts": 16})
    # three operators, and two products of 4 experts
    found = block_times(facts, (routed,), row(dp_shard=4, ep=4))
    assert found.launch_forward == pytest.approx(3 + 2 * 4 * 5)


def test_rows_follow_the_micro_batch_and_context_parallelism() -> None:
    found = times(matmul(TERA, m=100, n=50, k=25), on={"matmul": CURVE}, micro_batch_size=6, cp=2)
    assert found.matmul_forward == pytest.approx(at((300, 50, 25), 3 * TERA))


@pytest.mark.parametrize(
    ("side", "shape"), [("n", (100, 20, 30)), ("k", (100, 40, 15)), ("", (100, 40, 30))]
)
def test_tensor_parallelism_divides_flops_and_one_side(
    side: str, shape: tuple[float, float, float]
) -> None:
    operator = matmul(TERA, m=100, n=40, k=30, split=Split.TENSOR, split_side=side)
    found = times(operator, on={"matmul": CURVE}, tp=2)
    assert found.matmul_forward == pytest.approx(at(shape, TERA / 2))


def test_sides_are_never_below_one() -> None:
    ones = {"matmul": MatmulCurve(ceiling=1.0, m_half=1, n_half=1, k_half=1)}
    # no shape is known: 1/2 for each side
    assert times(matmul(TERA), on=ones).matmul_forward == pytest.approx(8)
    for side in ("n", "k"):
        thin = matmul(TERA, m=1, n=1, k=1, split=Split.TENSOR, split_side=side)
        assert times(thin, on=ones, tp=4).matmul_forward == pytest.approx(8 / 4)
    few = matmul(TERA, kind=OperatorKind.GROUPED_MATMUL, m=1, n=1, k=1)
    job_of_experts = job(block(few), device=ones, model={"experts": 8})
    assert block_times(job_of_experts, (block(few),), row()).matmul_forward == pytest.approx(8)


@pytest.mark.parametrize(
    ("split", "plan", "share"),
    [
        (Split.REPLICATED, {"tp": 4}, 1),
        (Split.REPLICATED, {"cp": 2}, 1 / 2),
        (Split.TENSOR, {"tp": 4}, 1 / 4),
        (Split.TENSOR, {"tp": 4, "cp": 2}, 1 / 8),
        (Split.SEQUENCE, {"tp": 4}, 1),
        (Split.SEQUENCE, {"tp": 4, "sequence_parallel": True}, 1 / 4),
        (Split.EXPERT, {"tp": 4}, 1 / 4),
        # each rank sends its share of the tokens away and computes as many of others
        (Split.EXPERT, {"tp": 4, "dp_shard": 2, "ep": 8}, 1 / 4),
        (Split.EXPERT, {"dp_shard": 8, "ep": 8}, 1),
    ],
)
def test_what_divides_an_operator(split: Split, plan: dict[str, Any], share: float) -> None:
    assert times(elementwise(TERA, split=split), **plan).forward == pytest.approx(share)
    assert times(matmul(TERA, split=split), **plan).forward == pytest.approx(share)


@pytest.mark.parametrize(
    ("vocab", "padded", "share"), [(250, False, 1), (250, True, 1 / 4), (252, False, 1 / 4)]
)
def test_a_vocabulary_that_tp_does_not_divide_is_whole_unless_it_is_padded(
    vocab: int, padded: bool, share: float
) -> None:
    own = block(matmul(TERA, split=Split.VOCABULARY), elementwise(TERA, split=Split.VOCABULARY))
    c = row(tp=4).joined({"vocab": vocab, "pads_vocabulary": padded})
    found = block_times(job(own), (own,), c)
    assert found.matmul_forward == pytest.approx(share)
    assert found.forward == pytest.approx(2 * share)


@pytest.mark.parametrize(
    ("plan", "shape", "share"),
    [
        # 400 rows over 8 experts; tp divides the side
        ({"tp": 2}, (50, 20, 30), 1 / 2),
        # 400 rows of each of 4 ranks over 8 experts; experts stay whole
        ({"dp_shard": 4, "ep": 4}, (200, 40, 30), 1),
        ({"tp": 2, "ep": 2}, (50, 40, 30), 1 / 2),
        # with tp 2 each of the 4 ranks brings 200 rows
        ({"tp": 2, "dp_shard": 2, "ep": 4}, (100, 40, 30), 1 / 2),
    ],
)
def test_experts_share_the_rows(
    plan: dict[str, Any], shape: tuple[float, float, float], share: float
) -> None:
    grouped = matmul(
        TERA, kind=OperatorKind.GROUPED_MATMUL, m=400, n=40, k=30, split=Split.EXPERT, split_side="n"
    )
    facts = job(block(grouped), device={"matmul": CURVE}, model={"experts": 8})
    found = block_times(facts, (block(grouped),), row(**plan))
    assert found.matmul_forward == pytest.approx(at(shape, share * TERA))


def test_unknown_experts_are_one() -> None:
    grouped = matmul(TERA, kind=OperatorKind.GROUPED_MATMUL, m=400, n=40, k=30, split=Split.EXPERT)
    assert times(grouped, on={"matmul": CURVE}).matmul_forward == pytest.approx(at((400, 40, 30), TERA))


def test_attention_passes_as_often_as_it_is_counted() -> None:
    assert times(replace(attention(TERA), count=3)).forward == pytest.approx(
        3 * times(attention(TERA)).forward
    )


def test_blocks_without_products_have_a_place_for_each_plan() -> None:
    blocks = tuple(block(attention(flops)) for flops in (TERA, 2 * TERA))
    plans = Columns({name: np.full(3, value) for name, value in row().known().items()})
    found = block_times(job(*blocks), blocks, plans)
    assert found.matmul_forward.shape == found.attention_forward.shape == (2, 3)


def test_traffic_moves_at_the_memorys_rate_and_twice_in_backward() -> None:
    operator = elementwise(TERA, count=2)
    facts = job(block(operator), stack={"elementwise_factor": 1.5}, device={"memory_bytes_per_s": 3 * TERA})
    found = block_times(facts, (block(operator),), row(micro_batch_size=5))
    assert found.forward == pytest.approx(2 * 5 * 1.5 / 3)
    assert found.backward == pytest.approx(2 * 2 * 5 * 1.5 / 3)


def test_traffic_of_routed_rows_has_a_factor_but_where_products_take_it_in() -> None:
    own = block(elementwise(TERA), elementwise(TERA, split=Split.EXPERT))

    def forward(**stack: Any) -> Any:
        facts = job(own, stack={"routed_traffic_factor": 3.0, **stack})
        return block_times(facts, (own,), row()).traffic_forward

    assert forward() == pytest.approx(1 + 3)
    assert forward(captured=True) == pytest.approx(2)


@pytest.mark.parametrize(("ep", "left"), [(1, 1.0), (2, 0.6)])
def test_rows_that_an_exchange_puts_in_order_are_no_other_kernels_traffic(ep: int, left: float) -> None:
    own = block(elementwise(TERA, split=Split.EXPERT), expert_parallel_bytes=TERA / 10)

    def forward(**stack: Any) -> Any:
        facts = job(own, stack={"routed_traffic_factor": 3.0, **stack})
        return block_times(facts, (own,), row(ep=ep)).traffic_forward

    # four of ten tenths are for the order
    assert forward(permutes_in_exchange=True) == pytest.approx(left * forward())
    captured = forward(permutes_in_exchange=True, captured=True)
    assert captured == pytest.approx(left * forward(captured=True))


def test_grouped_products_have_a_rate_of_their_own() -> None:
    products = [matmul(TERA, kind=kind) for kind in (OperatorKind.GROUPED_MATMUL, OperatorKind.MATMUL)]

    def forward(product: Operator, factor: float) -> float:
        own = block(product)
        found = block_times(job(own, stack={"grouped_factor": factor}), (own,), row())
        return float(np.sum(found.matmul_forward))

    plain, slower = ([forward(own, factor) for own in products] for factor in (1.0, 0.5))
    assert slower == pytest.approx([2 * plain[0], plain[1]])


def test_gradients_of_experts_are_added_to_those_before() -> None:
    # 4 experts of 16 are on a rank: 40 x 30 weights each, beside a dense product that adds nothing
    grouped = matmul(TERA, kind=OperatorKind.GROUPED_MATMUL, m=400, n=40, k=30, split=Split.EXPERT)
    own = block(replace(grouped, flops=2 * 400 * 40 * 30), matmul(2 * 400 * 40 * 30, m=400, n=40, k=30))

    def backward(*, adds: bool) -> Any:
        stack = {"adds_gradients": adds, "mixed_gradient_bytes": 4}
        facts = job(own, stack=stack, device={"memory_bytes_per_s": 2.0}, model={"experts": 16})
        return block_times(facts, (own,), row(dp_shard=4, ep=4)).matmul_backward

    # read and written
    assert backward(adds=True) - backward(adds=False) == pytest.approx(2 * 4 * 4 * 40 * 30 / 2)


def test_scans_take_3_6_times_what_the_memory_would_and_three_times_that_in_backward() -> None:
    operator = Operator(kind=OperatorKind.SCAN, flops=TERA, bytes=TERA, count=2, split=Split.TENSOR)
    own = block(operator, elementwise(TERA))
    facts = job(own, stack={"elementwise_factor": 1.5}, device={"memory_bytes_per_s": 3 * TERA})
    found = block_times(facts, (own,), row(micro_batch_size=5, tp=2))
    # whatever a stack's elementwise kernels do
    assert found.scan_forward == pytest.approx(5 * 3.6 / 3)
    assert found.forward == pytest.approx((2 / 2 * 3.6 + 1.5) * 5 / 3)
    assert found.backward == pytest.approx((3 * 2 / 2 * 3.6 + 2 * 1.5) * 5 / 3)


def test_blocks_without_scans_have_none() -> None:
    assert times(elementwise(TERA)).scan_forward == 0


def test_launches_are_counted_by_operator_and_pass() -> None:
    operators = (elementwise(0, count=2), attention(0), matmul(0, count=4))
    facts = job(block(*operators), stack={"launches_per_operator": 1.5}, device={"launch_s": 1e-3})
    found = block_times(facts, (block(*operators),), row(micro_batch_size=8))
    # one launch serves the whole micro-batch
    assert found.launch_forward == pytest.approx(7 * 1.5e-3)
    assert found.forward == pytest.approx(7 * 1.5e-3)
    assert found.backward == pytest.approx(2 * 7 * 1.5e-3)


def test_collectives_of_tensor_parallelism_are_launched_where_there_are_any() -> None:
    own = replace(block(elementwise(0)), tensor_parallel_collectives=2)
    stack = {"launches_per_operator": 1.0, "launches_per_collective": 3.0}
    facts = job(own, stack=stack, device={"launch_s": 1e-3})
    for tp, launches in ((1, 1), (2, 1 + 2 * 3)):
        found = block_times(facts, (own,), row(tp=tp)).launch_forward
        assert found == pytest.approx(launches * 1e-3)


def test_what_torch_dispatches_has_its_own_launches() -> None:
    operators = (elementwise(0, count=2), matmul(0))
    stack = {"launches_per_operator": 4.0, "launches_per_dispatch": 0.5}
    facts = job(block(*operators), stack=stack, device={"launch_s": 1e-3})
    traced = replace(facts, model=replace(facts.model, dispatched=True))
    for some, launches in ((facts, 4.0), (traced, 0.5)):
        found = block_times(some, (block(*operators),), row())
        assert found.launch_forward == pytest.approx(3 * launches * 1e-3)


def known(**seconds: float) -> BlockTimes:
    zero = dict.fromkeys(BlockTimes.__dataclass_fields__, 0.0)
    return BlockTimes(**(zero | seconds))


def test_the_longer_of_kernels_and_launches_hides_most_of_the_other() -> None:
    found = known(
        matmul_forward=1.0,
        matmul_backward=3.0,
        attention_forward=2.0,
        attention_backward=6.0,
        traffic_forward=1.0,
        traffic_again=2.0,
        launch_forward=3.0,
    )
    q = 2.3
    assert found.forward == pytest.approx(((1 + 2 + 1) ** q + 3**q) ** (1 / q))
    assert found.backward == pytest.approx(((3 + 6 + 2 * 1) ** q + (2 * 3) ** q) ** (1 / q))


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        (Recompute.NONE, 0),
        (Recompute.ATTENTION, 20),
        # half of the matmuls, no attention, all of scans and of the traffic
        (Recompute.SELECTIVE, 5 + 7 + 3),
        (Recompute.FULL, 10 + 20 + 7 + 3),
    ],
)
def test_what_a_policy_computes_again(policy: Recompute, again: float) -> None:
    found = known(
        matmul_forward=10.0,
        matmul_backward=99.0,
        attention_forward=20.0,
        scan_forward=7.0,
        traffic_forward=3.0,
    )
    assert found.recomputed(policy) == pytest.approx(again)


def test_selective_computes_all_products_of_experts_again() -> None:
    found = known(matmul_forward=10.0, grouped_forward=6.0, traffic_forward=3.0)
    # half of the four others
    assert found.recomputed(Recompute.SELECTIVE) == pytest.approx(6 + 2 + 3)


def test_grouped_products_are_told_from_the_others() -> None:
    plain, grouped = matmul(TERA), matmul(2 * TERA, kind=OperatorKind.GROUPED_MATMUL)
    both, dense = block(plain, grouped), block(plain)
    found = block_times(job(both, dense), (both, dense), row())
    assert found.grouped_forward == pytest.approx(found.matmul_forward * [2 / 3, 0])
    assert block_times(job(dense), (dense,), row()).grouped_forward == 0


def test_selective_recompute_launches_three_quarters_again() -> None:
    assert known(launch_forward=4.0).recomputed(Recompute.SELECTIVE) == pytest.approx(3)


def gpu(peak_fp32: float | None = None, **sustained: float) -> Device:
    return job(device={"sustained": Rates(**sustained), "peak": Rates(fp32=peak_fp32)}).hardware.device


ALL = {"fp32": 1.0, "tf32": 2.0, "bf16": 4.0, "fp16": 5.0, "fp8": 8.0}


@pytest.mark.parametrize(
    ("precision", "formats", "rate"),
    [
        (Precision.FP32, ALL, 1),
        (Precision.BF16, ALL, 4),
        (Precision.BF16_MIXED, ALL, 4),
        (Precision.FP16_MIXED, ALL, 5),
        (Precision.FP8, ALL, 8),
        # the next wider format that the device has
        (Precision.FP8, {"fp32": 1.0, "bf16": 4.0, "fp16": 5.0}, 4),
        (Precision.FP8, {"fp32": 1.0, "fp16": 5.0}, 5),
        (Precision.BF16_MIXED, {"fp32": 1.0, "fp16": 5.0}, 5),
        (Precision.BF16_MIXED, {"fp32": 1.0, "tf32": 2.0}, 1),
        (Precision.FP16_MIXED, {"fp32": 1.0, "bf16": 4.0}, 4),
        (Precision.FP16_MIXED, {"fp32": 1.0}, 1),
        (Precision.FP8, {"fp32": 1.0}, 1),
    ],
)
def test_the_rate_of_a_number_format(precision: Precision, formats: dict[str, float], rate: float) -> None:
    assert sustained_flops_per_s(gpu(**formats), precision) == rate


def test_a_device_without_sustained_rates_multiplies_at_its_datasheets() -> None:
    assert sustained_flops_per_s(gpu(7.0), Precision.FP32) == 7


def test_a_device_without_any_rate_is_named() -> None:
    with pytest.raises(ProfileError, match="gpu states no rate for fp32"):
        sustained_flops_per_s(gpu(bf16=1.0), Precision.FP32)


@pytest.mark.parametrize(
    ("precision", "matmuls", "attentions"),
    [(Precision.FP8, 8, 4), (Precision.FP16_MIXED, 5, 5), (Precision.FP32, 1, 1), (Precision.BF16, 4, 4)],
)
def test_attention_stays_in_bf16_under_fp8(precision: Precision, matmuls: float, attentions: float) -> None:
    rates = {"sustained": Rates(**{name: rate * TERA for name, rate in ALL.items()})}
    both = block(matmul(TERA), attention(TERA))
    found = block_times(job(both, precision=precision, device=rates), (both,), row(precision=precision))
    assert found.matmul_forward == pytest.approx(1 / matmuls)
    assert found.attention_forward == pytest.approx(2 / attentions)
    # where scores are kept as well, with a softmax that takes nothing
    kernels = {"kernels": Kernels.FUSED_MATH}
    facts = job(both, precision=precision, device=rates, stack=kernels, model={"heads": None})
    kept = block_times(facts, (both,), row(precision=precision))
    assert kept.attention_forward == pytest.approx(1 / attentions)
