"""Closed form of ConvNeXt (Liu et al., arXiv:2201.03545, section 2, figure 4): no batch norm, no ReLU.

Checked against the tensors that autograd saves in Hugging Face's modules (tests/sources/test_convnext.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.model import Block, Family, ModelSpec, Operator, OperatorKind, Parameters, Split
from parastrat.saved import Activations, Saved
from parastrat.sources.layers import convolution, elementwise, matmul
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.workload import Precision

#: sides of the kernels: the stem's and the downsampling layers' do not overlap
_STEM, _DEPTHWISE, _DOWN = 4, 7, 2
#: width between the two pointwise layers over the block's
_EXPANSION = 4
_FP32 = 4
#: mean and deviation of a norm, for each position
_STATISTICS = 2 * _FP32
_CAVEAT = "depthwise convolutions are taken to be bound by memory traffic; their kernels may be slower"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvNeXt:
    """A ConvNeXt of four stages."""

    name: str
    #: blocks of each stage, and its channels
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    image_size: int
    channels: int
    classes: int
    source: str = ""

    @property
    def family(self) -> Family:
        """What the network is."""
        return Family.CONVOLUTIONAL

    def at(self, precision: Precision, kernels: Kernels, ref: str) -> ModelSpec:
        """Return the closed form."""
        return convnext(self, precision, kernels, ref)


def convnext(network: ConvNeXt, precision: Precision, kernels: Kernels, ref: str) -> ModelSpec:
    """Return the network on square images of its size."""
    b = precision.compute_bytes
    side = network.image_size // _STEM
    blocks = [_stem(network, b)]
    for stage, (depth, width) in enumerate(zip(network.depths, network.widths, strict=True), 1):
        if stage > 1:
            side //= _DOWN
            blocks.append(_downsampling(stage, network.widths[stage - 2], width, side**2, b))
        blocks.append(_stage(f"stage {stage}", depth, width, side**2, (b, kernels)))
    blocks.append(_classifier(network.widths[-1], network.classes, side**2, b))
    total = sum(block.parameter_count * block.repeat for block in blocks)
    return ModelSpec(
        ref=ref,
        name=network.name,
        family=network.family,
        blocks=tuple(blocks),
        parameters=total,
        active_parameters=total,
        sequence_length=None,
        precision=precision,
        causal=False,
        layers=sum(network.depths),
        source=network.source,
        caveats=(_CAVEAT,),
        changing_buffers=False,
        routed=False,
    )


def _stage(name: str, depth: int, width: int, pixels: int, setting: tuple[int, Kernels]) -> Block:
    """Return equal blocks: a depthwise convolution, a norm, two pointwise layers and a scale per channel.

    Eager kernels keep, in widths: the input, the depthwise output, the norm's, the inner layer before and
    after its GELU (four each), and the outer layer's, which the scale's gradient needs. Compiled ones
    compute the norm and the GELU again.
    """
    b, kernels = setting
    inner = _EXPANSION * width
    tensor = b * width * pixels
    between = (1 + _EXPANSION) if not kernels.compiled else 0
    kept = Saved(replicated=(3 + _EXPANSION + between) * tensor + _STATISTICS * pixels)
    depthwise = (_DEPTHWISE**2 + 1) * width
    pointwise = 2 * inner * width + inner + width
    norm, scale = 2 * width, width
    return Block(
        name=name,
        repeat=depth,
        parameters=(Parameters(trainable=depthwise + norm + pointwise + scale),),
        operators=(
            Operator(
                kind=OperatorKind.ELEMENTWISE,
                flops=2 * _DEPTHWISE**2 * width * pixels,
                bytes=2 * tensor,
            ),
            matmul(pixels, inner, width, ""),
            matmul(pixels, width, inner, ""),
            # the norm and the scale read and write, the GELU four widths, the sum reads two
            elementwise((2 + 2 + 2 * _EXPANSION + 3) * tensor, Split.REPLICATED),
        ),
        activations=Activations(
            none=kept,
            attention=kept,
            # outputs of the depthwise convolution and of every second matrix multiply
            selective=Saved(replicated=(2 + _EXPANSION) * tensor),
            full=Saved(replicated=tensor),
        ),
        # gradients before and behind the GELU, of the sum and of its branch
        working=Saved(replicated=(2 * _EXPANSION + 2) * tensor),
        boundary_bytes=tensor,
    )


def _stem(network: ConvNeXt, b: int) -> Block:
    """Return the convolution that cuts the image into patches, and its norm."""
    pixels, width = (network.image_size // _STEM) ** 2, network.widths[0]
    patch = network.channels * _STEM**2
    return _outside(
        "stem",
        Parameters(trainable=(patch + 1) * width + 2 * width),
        (convolution(pixels, width, patch), elementwise(2 * b * width * pixels, Split.REPLICATED)),
        b * (patch + width) * pixels + _STATISTICS * pixels,
        b * width * pixels,
    )


def _downsampling(stage: int, inputs: int, width: int, pixels: int, b: int) -> Block:
    """Return the norm and the strided convolution before a stage."""
    before = _DOWN**2 * pixels
    return _outside(
        f"downsampling {stage}",
        Parameters(trainable=2 * inputs + (inputs * _DOWN**2 + 1) * width),
        (
            elementwise(2 * b * inputs * before, Split.REPLICATED),
            convolution(pixels, width, inputs * _DOWN**2),
        ),
        (2 * b * inputs + _STATISTICS) * before,
        b * max(width * pixels, inputs * before),
        boundary=b * width * pixels,
    )


def _classifier(width: int, classes: int, pixels: int, b: int) -> Block:
    """Return the mean over the image, its norm and the classifier."""
    return _outside(
        "head",
        Parameters(trainable=2 * width + (width + 1) * classes),
        (elementwise(b * width * pixels, Split.REPLICATED), matmul(1, classes, width, "")),
        b * (2 * width + classes) + _STATISTICS,
        b * width * pixels,
        boundary=0,
    )


def _outside(
    name: str,
    parameters: Parameters,
    operators: tuple[Operator, ...],
    kept: float,
    largest: float,
    *,
    boundary: float | None = None,
) -> Block:
    """Return what stands outside the repeated blocks; no policy recomputes it."""
    saved = Saved(replicated=kept)
    return Block(
        name=name,
        repeat=1,
        parameters=(parameters,),
        operators=operators,
        activations=Activations(none=saved, attention=saved, selective=saved, full=saved),
        # the gradient of its largest tensor
        working=Saved(replicated=largest),
        boundary_bytes=largest if boundary is None else boundary,
        unit=False,
    )
