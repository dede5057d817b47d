"""ConvNeXt counted by hand (64 x 64 pixels, so 16 x 16 behind the stem; 2 bytes an element), against the
modules of transformers, and against what autograd saves in them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from sources.test_saved_tensors import saved_by_autograd

from parastrat.model import Block, ModelSpec, OperatorKind, Parameters
from parastrat.profiles import model_names
from parastrat.saved import Saved
from parastrat.sources import load_source
from parastrat.sources.convnext import ConvNeXt, convnext
from parastrat.sources.presets import ImageSource
from parastrat.stack import Kernels
from parastrat.workload import Optimizer, Precision

transformers = pytest.importorskip("transformers")

SMALL = ConvNeXt(name="small", depths=(2, 3), widths=(32, 64), image_size=64, channels=3, classes=10)
PRESETS = [name for name in model_names() if name.startswith("convnext")]


def model(kernels: Kernels = Kernels.EAGER, precision: Precision = Precision.BF16_MIXED) -> ModelSpec:
    return convnext(SMALL, precision, kernels, ref="small")


def named(name: str, kernels: Kernels = Kernels.EAGER) -> Block:
    (found,) = [block for block in model(kernels).blocks if block.name == name]
    return found


def preset(name: str) -> ImageSource:
    source = load_source(name)
    assert isinstance(source, ImageSource)
    return source


def built(network: ConvNeXt) -> torch.nn.Module:
    config = transformers.ConvNextConfig(
        depths=list(network.depths),
        hidden_sizes=list(network.widths),
        num_stages=len(network.depths),
        image_size=network.image_size,
        num_labels=network.classes,
    )
    module: torch.nn.Module = transformers.ConvNextForImageClassification(config)
    return module


def test_stages_are_apart_by_downsampling() -> None:
    spec = model()
    assert [(block.name, block.repeat, block.unit) for block in spec.blocks] == [
        ("stem", 1, False),
        ("stage 1", 2, True),
        ("downsampling 2", 1, False),
        ("stage 2", 3, True),
        ("head", 1, False),
    ]
    assert (spec.layers, spec.changing_buffers, spec.sequence_length) == (5, False, None)
    assert len(spec.caveats) == 1


def test_parameters_of_a_block() -> None:
    depthwise, norm, scale = 50 * 32, 2 * 32, 32
    pointwise = 2 * 32 * 128 + 128 + 32
    assert named("stage 1").parameters == (Parameters(trainable=depthwise + norm + pointwise + scale),)
    assert named("downsampling 2").parameter_count == 2 * 32 + (32 * 4 + 1) * 64


def test_products_and_traffic_of_a_block() -> None:
    operators = named("stage 1").operators
    products = [(o.m, o.n, o.k) for o in operators if o.kind is OperatorKind.MATMUL]
    assert products == [(256, 128, 32), (256, 32, 128)]
    tensor = 2 * 32 * 256
    traffic = [(o.flops, o.bytes) for o in operators if o.kind is OperatorKind.ELEMENTWISE]
    assert traffic == [(2 * 49 * 32 * 256, 2 * tensor), (0, 15 * tensor)]


@pytest.mark.parametrize(("kernels", "widths"), [(Kernels.EAGER, 12), (Kernels.COMPILED, 7)])
def test_what_a_block_keeps(kernels: Kernels, widths: int) -> None:
    block, tensor = named("stage 2", kernels), 2 * 64 * 64
    kept = Saved(replicated=widths * tensor + 8 * 64)
    assert block.activations.none == block.activations.attention == kept
    assert block.activations.selective == Saved(replicated=6 * tensor)
    assert block.activations.full == Saved(replicated=tensor)
    # of the inner layer two gradients, in eager mode one in the place of what GELU gave; of the sum
    assert block.working == Saved(replicated=(5 if kernels is Kernels.EAGER else 10) * tensor)
    assert block.boundary_bytes == tensor


def test_under_autocast_norms_and_the_residual_are_in_fp32() -> None:
    block, width = named("stage 2"), 64 * 64
    cast = block.autocast
    assert cast is not None
    # of twelve tensors the depthwise convolution's output, as the norm reads it
    assert cast.activations.none == Saved(replicated=(11 * 2 + 4) * width + 8 * 64)
    assert cast.activations.selective == Saved(replicated=(5 * 2 + 4) * width)
    assert cast.activations.full == Saved(replicated=4 * width)
    assert (cast.boundary_bytes, cast.working) == (4 * width, Saved(replicated=(4 * 2 + 4) * width))
    assert model(Kernels.COMPILED).blocks[1].autocast is None


def test_ends_keep_what_their_convolutions_and_norms_read() -> None:
    assert named("stem").activations.full == Saved(replicated=(6 * 48 + 2 * 32) * 256 + 8 * 256)
    assert named("downsampling 2").activations.full == Saved(replicated=2 * 2 * 32 * 256 + 8 * 256)
    assert named("head").activations.full == Saved(replicated=2 * (2 * 64 + 10) + 8)
    assert (named("stem").boundary_bytes, named("head").boundary_bytes) == (2 * 32 * 256, 0)
    assert named("downsampling 2").boundary_bytes == 2 * 64 * 64


@pytest.mark.parametrize(
    ("name", "products", "traffic", "largest"),
    [
        # a norm reads and writes; behind the stem there are 16 x 16 pixels, behind the downsampling 8 x 8
        ("stem", [(256, 32, 3 * 16)], 2 * 2 * 32 * 256, 32 * 256),
        ("downsampling 2", [(64, 64, 32 * 4)], 2 * 2 * 32 * 256, 32 * 256),
        # the mean reads the image
        ("head", [(1, 10, 64)], 2 * 64 * 64, 64 * 64),
    ],
)
def test_what_ends_compute_and_work_on(
    name: str, products: list[tuple[int, int, int]], traffic: int, largest: int
) -> None:
    block = named(name)
    assert [(o.m, o.n, o.k) for o in block.operators if o.m] == products
    assert [o.bytes for o in block.operators if not o.m] == [traffic]
    assert all(o.bytes == 0 for o in block.operators if o.m)
    assert block.working == Saved(replicated=2 * largest)


def test_downsampling_works_on_its_output_where_that_is_larger() -> None:
    spec = convnext(replace(SMALL, widths=(8, 64)), Precision.BF16_MIXED, Kernels.EAGER, ref="small")
    (block,) = [block for block in spec.blocks if block.name == "downsampling 2"]
    assert block.working == Saved(replicated=2 * 64 * 64)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_the_closed_form_is_what_autograd_saves(dtype: torch.dtype) -> None:
    precision = Precision.FP32 if dtype is torch.float32 else Precision.BF16_MIXED
    spec = model(precision=precision)
    module = built(SMALL).to(dtype).train()
    inputs = {
        "pixel_values": torch.randn(2, 3, 64, 64, dtype=dtype),
        "labels": torch.zeros(2, dtype=torch.long),
    }
    closed = 2 * sum(block.activations.none.total * block.repeat for block in spec.blocks)
    # in bf16 the processor's norms keep their statistics in bf16
    assert closed == pytest.approx(saved_by_autograd(module, inputs), rel=0.01)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_counts_what_transformers_builds(name: str) -> None:
    source = preset(name)
    assert isinstance(source.network, ConvNeXt)
    with torch.device("meta"):
        module = built(source.network)
    ours = source.at(None, Precision.FP32, Kernels.EAGER).parameters
    assert ours == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("name", "published"), [("t", 4.5), ("s", 8.7), ("b", 15.4), ("l", 34.4), ("xl", 60.9)]
)
def test_a_preset_multiplies_as_published(name: str, published: float) -> None:
    # arXiv:2201.03545, table 1: G multiply-adds at 224 pixels
    spec = preset(f"convnext-{name}").at(None, Precision.BF16_MIXED, Kernels.EAGER)
    assert round(spec.flops / 2e9, 1) == published


def test_all_sizes_train_with_adamw() -> None:
    assert {preset(name).defaults.optimizer for name in PRESETS} == {Optimizer.ADAMW}
    assert len(PRESETS) == 5
