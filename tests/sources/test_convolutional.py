"""A residual network counted by hand: 32 x 32 pixels, so 8 x 8 behind the stem; 2 bytes an element."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parastrat.model import Block, ModelSpec, OperatorKind, Parameters
from parastrat.saved import Saved
from parastrat.sources.convolutional import ResidualNetwork, residual_network
from parastrat.stack import Kernels
from parastrat.workload import Precision

NETWORK = ResidualNetwork(name="small", depths=(3, 1), image_size=32, channels=3, classes=10)


def model(kernels: Kernels = Kernels.EAGER, precision: Precision = Precision.BF16_MIXED) -> ModelSpec:
    return residual_network(NETWORK, precision, kernels, ref="small")


def named(name: str, kernels: Kernels = Kernels.EAGER) -> Block:
    (found,) = [block for block in model(kernels).blocks if block.name == name]
    return found


def shapes(block: Block) -> list[tuple[int, int, int]]:
    return [(o.m, o.n, o.k) for o in block.operators if o.kind is OperatorKind.CONVOLUTION]


def moved(block: Block) -> float:
    return sum(o.bytes * o.count for o in block.operators if o.kind is OperatorKind.ELEMENTWISE)


def dispatched(block: Block) -> int:
    return sum(operator.count for operator in block.operators)


#: outputs of a stage's first block, elements: 1x1, 3x3 and 1x1 four times as wide, and the projection
FIRST = 64 * 64 + 64 * 64 + 256 * 64 + 256 * 64
#: the second stage strides in its 3x3, from 8 x 8 to 4 x 4
SECOND = 128 * 64 + 128 * 16 + 512 * 16 + 512 * 16


def test_the_chain() -> None:
    spec = model()
    assert [(block.name, block.repeat, block.unit) for block in spec.blocks] == [
        ("stem", 1, False),
        ("stage 1 first", 1, True),
        ("stage 1", 2, True),
        ("stage 2 first", 1, True),
        ("head", 1, False),
    ]
    assert spec.layers == 4
    each = sum(block.parameter_count * block.repeat for block in spec.blocks)
    assert spec.parameters == spec.active_parameters == each


@pytest.mark.parametrize(("depth", "repeats"), [(1, [1]), (2, [1, 1]), (4, [1, 3])])
def test_a_stage_is_its_first_block_and_the_others(depth: int, repeats: list[int]) -> None:
    one = residual_network(
        replace(NETWORK, depths=(depth,)), Precision.FP32, Kernels.EAGER, ref="one stage"
    )
    assert [block.repeat for block in one.blocks[1:-1]] == repeats


def test_convolutions_are_products_over_pixels() -> None:
    # rows are output pixels; the inner side is inputs x kernel
    assert shapes(named("stem")) == [(16 * 16, 64, 3 * 7 * 7)]
    assert shapes(named("stage 1 first")) == [
        (64, 64, 64),
        (64, 64, 64 * 9),
        (64, 256, 64),
        (64, 256, 64),
    ]
    assert shapes(named("stage 1")) == [(64, 64, 256), (64, 64, 64 * 9), (64, 256, 64)]
    assert shapes(named("stage 2 first")) == [
        (64, 128, 256),
        (16, 128, 128 * 9),
        (16, 512, 128),
        (16, 512, 256),
    ]
    for block in model().blocks[:-1]:
        for operator in block.operators:
            if operator.kind is OperatorKind.CONVOLUTION:
                assert (operator.flops, operator.bytes) == (2 * operator.m * operator.n * operator.k, 0)
            else:
                assert operator.flops == 0


def test_parameters_are_kernels_and_norms() -> None:
    # a batch norm has a scale and a shift for each output
    assert named("stem").parameters == (Parameters(trainable=3 * 64 * 7 * 7 + 2 * 64),)
    assert named("stage 2 first").parameter_count == (
        (256 * 128 + 2 * 128) + (128 * 128 * 9 + 2 * 128) + (128 * 512 + 2 * 512) + (256 * 512 + 2 * 512)
    )


@pytest.mark.parametrize(
    ("name", "outputs", "rectified", "last", "first", "channels"),
    [
        ("stage 1 first", FIRST, 2 * 64 * 64, 256 * 64, 64 * 64, 2 * 64 + 2 * 256),
        ("stage 1", FIRST - 256 * 64, 2 * 64 * 64, 256 * 64, 256 * 64, 2 * 64 + 256),
        ("stage 2 first", SECOND, 128 * 64 + 128 * 16, 512 * 16, 256 * 64, 2 * 128 + 2 * 512),
    ],
)
def test_what_a_bottleneck_keeps_and_moves(
    name: str, outputs: int, rectified: int, last: int, first: int, channels: int
) -> None:
    eager, compiled = named(name), named(name, Kernels.COMPILED)
    # mean and deviation of each channel; of the first block what pooling gave, too
    fixed, pooled = 8 * channels, first if name == "stage 1 first" else 0
    # convolutions' outputs for their norms, ReLUs' outputs for the next convolution, and the block's own
    assert eager.activations.none == Saved(
        replicated=2 * (outputs + rectified + last + pooled), fixed=fixed
    )
    assert compiled.activations.none == Saved(replicated=2 * (outputs + last + pooled), fixed=fixed)
    assert eager.activations.attention == eager.activations.none
    assert eager.activations.full == Saved(replicated=2 * first)
    assert eager.activations.selective == Saved(replicated=2 * (first + outputs))
    # norms read twice and write, ReLUs read and write; the sum reads two and writes one, then its ReLU
    assert moved(eager) == 2 * (3 * outputs + 2 * rectified + 5 * last)
    assert eager.boundary_bytes == 2 * last


def test_operators_are_those_that_torch_dispatches() -> None:
    assert model().dispatched
    # images are cast; convolution, norm, its counter and ReLU; pooling
    assert dispatched(named("stem")) == 6
    # three of them, one without ReLU, and the sum with its ReLU; the first projects as well
    assert dispatched(named("stage 1")) == 3 * 3 + 2 + 2
    assert dispatched(named("stage 1 first")) == 4 * 3 + 2 + 2


def test_selective_recompute_keeps_no_more_than_none() -> None:
    # compiled, the input is larger than the output that "none" keeps
    block = named("stage 2 first", Kernels.COMPILED)
    assert block.activations.selective == block.activations.none


def test_gradients_of_the_largest_tensor_and_of_its_source_work() -> None:
    assert named("stage 1").working == Saved(replicated=2 * 2 * 256 * 64)
    # as large as the block's output: 128 channels before the stride
    assert named("stage 2 first").working == Saved(replicated=2 * 2 * 512 * 16)
    assert named("head").working == Saved(replicated=2 * 512 * 16)


def test_the_stem_keeps_pixels_and_the_poolings_indices() -> None:
    stem = named("stem")
    output, pooled, pixels = 64 * 16 * 16, 64 * 8 * 8, 3 * 32 * 32
    # 8 bytes of index for each pooled element, which the next block keeps
    # the loop's images in fp32 stay
    kept = Saved(replicated=2 * (output + output + pixels) + 4 * pixels + 8 * pooled, fixed=8 * 64)
    assert {stem.activations.none, stem.activations.selective, stem.activations.full} == {kept}
    # norm, ReLU, and pooling, which reads its input and writes values and indices
    assert moved(stem) == 2 * 6 * output + (2 + 8) * pooled + (4 + 2) * pixels
    assert stem.boundary_bytes == 2 * pooled
    assert stem.working == Saved(replicated=2 * 2 * output)


def test_the_head_multiplies_one_row() -> None:
    head = named("head")
    (dense,) = head.operators
    assert (dense.kind, dense.m, dense.n, dense.k) == (OperatorKind.MATMUL, 1, 10, 512)
    assert (dense.flops, dense.bytes) == (2 * 512 * 10, 0)
    assert head.parameters == (Parameters(trainable=512 * 10 + 10),)
    assert head.activations.none == Saved(replicated=2 * (512 + 10))
    assert head.boundary_bytes == 0


def test_in_fp32_everything_kept_is_twice_as_large_but_the_indices() -> None:
    short, full = model(), model(precision=Precision.FP32)
    for one, other in zip(short.blocks[1:], full.blocks[1:], strict=True):
        assert other.activations.none.replicated == 2 * one.activations.none.replicated
        assert other.activations.none.fixed == one.activations.none.fixed
    indices, images = 8 * 64 * 8 * 8, 4 * 3 * 32 * 32
    stems = [spec.blocks[0].activations.none.replicated - indices for spec in (short, full)]
    assert stems[1] == 2 * (stems[0] - images)
