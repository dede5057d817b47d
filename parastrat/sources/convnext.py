"""Closed form of ConvNeXt (Liu et al., arXiv:2201.03545, section 2, figure 4): no batch norm, no ReLU.

Checked against the tensors that autograd saves in Hugging Face's modules (tests/sources/test_convnext.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from parastrat.model import Block, Family, ModelSpec, Operator, OperatorKind, Parameters, Split
from parastrat.saved import Activations, Saved
from parastrat.sources.casts import with_autocast
from parastrat.sources.layers import convolution, elementwise, matmul, of_batch
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
    blocks = with_autocast(
        lambda cast: _chain(network, _Way(precision.compute_bytes, kernels, cast=cast)), precision, kernels
    )
    total = sum(block.parameter_count * block.repeat for block in blocks)
    return ModelSpec(
        ref=ref,
        name=network.name,
        family=network.family,
        blocks=blocks,
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


class _Way(NamedTuple):
    """In which formats the network runs, and in which kernels."""

    #: bytes of an element of what products read and give
    element: int
    kernels: Kernels
    #: under autocast: norms read copies in fp32, and the scale per channel brings the residual to fp32
    cast: bool

    @property
    def stream(self) -> int:
        """Return the bytes of an element of the residual, and of what norms read."""
        return _FP32 if self.cast else self.element


def _chain(network: ConvNeXt, way: _Way) -> tuple[Block, ...]:
    side = network.image_size // _STEM
    blocks = [_stem(network, way)]
    for stage, (depth, width) in enumerate(zip(network.depths, network.widths, strict=True), 1):
        if stage > 1:
            side //= _DOWN
            blocks.append(_downsampling(stage, network.widths[stage - 2], width, side**2, way))
        blocks.append(_stage(f"stage {stage}", depth, width, side**2, way))
    return (*blocks, _classifier(network.widths[-1], network.classes, side**2, way))


def _stage(name: str, depth: int, width: int, pixels: int, way: _Way) -> Block:
    """Return equal blocks: a depthwise convolution, a norm, two pointwise layers and a scale per channel.

    Eager kernels keep, in widths: the input, the depthwise output, the norm's, the inner layer before and
    after its GELU (four each), and the outer layer's, which the scale's gradient needs. Compiled ones
    compute the norm and the GELU again.
    """
    inner, kernels = _EXPANSION * width, way.kernels
    tensor, stream = way.element * width * pixels, way.stream * width * pixels
    between = (1 + _EXPANSION) if not kernels.compiled else 0
    # under autocast the norm keeps the depthwise output in fp32
    kept = Saved(replicated=(2 + _EXPANSION + between) * tensor + stream + _STATISTICS * pixels)
    # gradients before and behind the GELU, in eager mode in the place of its output; of the sum, its branch
    working = _EXPANSION * tensor + stream if kernels.eager else (2 * _EXPANSION + 2) * tensor
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
            selective=Saved(replicated=(1 + _EXPANSION) * tensor + stream),
            full=Saved(replicated=stream),
        ),
        working=Saved(replicated=working),
        boundary_bytes=stream,
    )


def _stem(network: ConvNeXt, way: _Way) -> Block:
    """Return the convolution that cuts the image into patches, and its norm."""
    pixels, width = (network.image_size // _STEM) ** 2, network.widths[0]
    patch, b = network.channels * _STEM**2, way.element
    images = of_batch(b) * patch
    return _outside(
        "stem",
        Parameters(trainable=(patch + 1) * width + 2 * width),
        (convolution(pixels, width, patch), elementwise(2 * b * width * pixels, Split.REPLICATED)),
        (images + way.stream * width + _STATISTICS) * pixels,
        way.stream * width * pixels,
    )


def _downsampling(stage: int, inputs: int, width: int, pixels: int, way: _Way) -> Block:
    """Return the norm and the strided convolution before a stage."""
    before, b = _DOWN**2 * pixels, way.element
    return _outside(
        f"downsampling {stage}",
        Parameters(trainable=2 * inputs + (inputs * _DOWN**2 + 1) * width),
        (
            elementwise(2 * b * inputs * before, Split.REPLICATED),
            convolution(pixels, width, inputs * _DOWN**2),
        ),
        ((b + way.stream) * inputs + _STATISTICS) * before,
        max(b * width * pixels, way.stream * inputs * before),
        boundary=b * width * pixels,
    )


def _classifier(width: int, classes: int, pixels: int, way: _Way) -> Block:
    """Return the mean over the image, its norm and the classifier."""
    b = way.element
    return _outside(
        "head",
        Parameters(trainable=2 * width + (width + 1) * classes),
        (elementwise(b * width * pixels, Split.REPLICATED), matmul(1, classes, width, "")),
        way.stream * width + b * (width + classes) + _STATISTICS,
        way.stream * width * pixels,
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
