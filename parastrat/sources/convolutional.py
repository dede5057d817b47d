"""Closed form of residual convolutional networks with bottleneck blocks (He et al., arXiv:1512.03385)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parastrat.model import Block, Family, ModelSpec, Operator, OperatorKind, Parameters
from parastrat.saved import Activations, Saved
from parastrat.sources.layers import of_batch
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.workload import Precision

#: outputs of a bottleneck over its inner width
_EXPANSION = 4
_STEM_WIDTH = 64
_INDEX_BYTES = 8
_FP32 = 4
#: of each channel a batch norm keeps the batch's mean and deviation
_STATISTICS = 2 * _FP32


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualNetwork:
    """A ResNet of bottleneck blocks."""

    name: str
    #: bottlenecks of the four stages
    depths: tuple[int, ...]
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
        return residual_network(self, precision, kernels, ref)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Convolution:
    """A convolution with its batch norm, and a ReLU behind it or not."""

    inputs: int
    outputs: int
    kernel: int
    #: output side, pixels
    side: int
    #: input side, pixels
    input_side: int
    relu: bool = True

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.kernel**2 + 2 * self.outputs

    @property
    def operator(self) -> Operator:
        m, k = self.side**2, self.inputs * self.kernel**2
        return Operator(
            kind=OperatorKind.CONVOLUTION,
            flops=2 * m * self.outputs * k,
            bytes=0,
            m=m,
            n=self.outputs,
            k=k,
            reuse=(self.kernel * self.side / self.input_side) ** 2,
        )

    @property
    def output_elements(self) -> int:
        return self.outputs * self.side**2


def residual_network(
    network: ResidualNetwork, precision: Precision, kernels: Kernels, ref: str
) -> ModelSpec:
    """Return the network on square images of its size."""
    b = precision.compute_bytes
    blocks = _chain(network, (b, kernels))
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
        changing_buffers=True,
        routed=False,
        dispatched=True,
        source=network.source,
    )


def _chain(network: ResidualNetwork, setting: tuple[int, Kernels]) -> tuple[Block, ...]:
    side = network.image_size // 4
    blocks = [_stem(network, setting)]
    inputs = _STEM_WIDTH
    for stage, depth in enumerate(network.depths):
        width = _STEM_WIDTH * 2**stage
        stride = 1 if stage == 0 else 2
        blocks.append(_bottleneck(f"stage {stage + 1} first", 1, (inputs, width), (side, stride), setting))
        side //= stride
        inputs = _EXPANSION * width
        if depth > 1:
            blocks.append(_bottleneck(f"stage {stage + 1}", depth - 1, (inputs, width), (side, 1), setting))
    blocks.append(_classifier(inputs, network.classes, side, setting[0]))
    return tuple(blocks)


def _bottleneck(
    name: str, repeat: int, widths: tuple[int, int], sides: tuple[int, int], setting: tuple[int, Kernels]
) -> Block:
    """Return a bottleneck; the first of a stage projects its input, and strides in its 3x3."""
    inputs, width = widths
    side, stride = sides
    out = side // stride
    chain = [
        _Convolution(inputs=inputs, outputs=width, kernel=1, side=side, input_side=side),
        _Convolution(inputs=width, outputs=width, kernel=3, side=out, input_side=side),
        _Convolution(
            inputs=width, outputs=_EXPANSION * width, kernel=1, side=out, input_side=out, relu=False
        ),
    ]
    if inputs != _EXPANSION * width or stride > 1:
        chain.append(
            _Convolution(
                inputs=inputs, outputs=_EXPANSION * width, kernel=1, side=out, input_side=side, relu=False
            )
        )
    # the sum's ReLU keeps its own output, which is the next block's input
    block = _convolutions(
        name, repeat, chain, setting, last=_EXPANSION * width * out**2, first=inputs * side**2
    )
    if inputs != _STEM_WIDTH:
        return block
    # what pooling gave nothing before it keeps
    kept = block.activations.none + block.activations.full
    return replace(block, activations=replace(block.activations, none=kept, attention=kept))


def _convolutions(
    name: str,
    repeat: int,
    chain: list[_Convolution],
    setting: tuple[int, Kernels],
    *,
    last: int,
    first: int,
) -> Block:
    """Return a block of convolutions, each with batch norm, and of the sum behind them.

    Eager kernels keep each convolution's output (batch norm's input) and each ReLU's output (the next
    convolution's input); compiled ones compute batch norm and ReLU again from the former.
    """
    b, kernels = setting
    outputs = sum(convolution.output_elements for convolution in chain)
    rectified = sum(convolution.output_elements for convolution in chain if convolution.relu)
    kept = b * (outputs + last + (rectified if kernels.eager else 0))
    full = Saved(replicated=b * first)
    none = Saved(replicated=kept, fixed=_STATISTICS * sum(convolution.outputs for convolution in chain))
    selective = min(none, Saved(replicated=b * (first + outputs)), key=lambda saved: saved.total)
    return Block(
        name=name,
        repeat=repeat,
        parameters=(Parameters(trainable=sum(convolution.parameters for convolution in chain)),),
        operators=(*_normed(chain, b), _pass(3 * b * last), _pass(2 * b * last)),
        activations=Activations(none=none, attention=none, selective=selective, full=full),
        working=Saved(replicated=2 * b * max(last, *(c.output_elements for c in chain))),
        boundary_bytes=b * last,
        unit=name != "stem",
    )


def _normed(chain: list[_Convolution], b: int) -> tuple[Operator, ...]:
    """Return convolutions with their norms and ReLUs, operator by operator as torch dispatches them.

    A batch norm takes its statistics first: it reads twice and writes once. A ReLU works in place.
    """
    passes = [_pass(3 * b * each.output_elements) for each in chain]
    passes += [_pass(2 * b * each.output_elements) for each in chain if each.relu]
    # each norm counts its batches in a number on the device
    counters = replace(_pass(0), count=len(chain))
    return (*(each.operator for each in chain), *passes, counters)


def _pass(moved: int) -> Operator:
    return Operator(kind=OperatorKind.ELEMENTWISE, flops=0, bytes=moved, weighted=False)


def _stem(network: ResidualNetwork, setting: tuple[int, Kernels]) -> Block:
    b, kernels = setting
    half, quarter = network.image_size // 2, network.image_size // 4
    first = _Convolution(
        inputs=network.channels,
        outputs=_STEM_WIDTH,
        kernel=7,
        side=half,
        input_side=network.image_size,
    )
    pixels = network.channels * network.image_size**2
    pooled = _STEM_WIDTH * quarter**2
    # max pooling keeps an index of 8 bytes for each output
    pooling = _pass(b * (first.output_elements + pooled) + _INDEX_BYTES * pooled)
    block = _convolutions("stem", 1, [first], (b, kernels), last=pixels, first=pixels)
    kept = block.activations.none + Saved(replicated=_INDEX_BYTES * pooled + (of_batch(b) - b) * pixels)
    return Block(
        name="stem",
        repeat=1,
        parameters=block.parameters,
        # images are cast where the loop's are in another format
        operators=(*_normed([first], b), pooling, *([_pass(of_batch(b) * pixels)] if b < _FP32 else ())),
        activations=Activations(none=kept, attention=kept, selective=kept, full=kept),
        working=block.working,
        boundary_bytes=b * _STEM_WIDTH * quarter**2,
        unit=False,
    )


def _classifier(inputs: int, classes: int, side: int, b: int) -> Block:
    kept = Saved(replicated=b * (inputs + classes))
    dense = Operator(
        kind=OperatorKind.MATMUL, flops=2 * inputs * classes, bytes=0, m=1, n=classes, k=inputs
    )
    return Block(
        name="head",
        repeat=1,
        parameters=(Parameters(trainable=inputs * classes + classes),),
        operators=(dense,),
        activations=Activations(none=kept, attention=kept, selective=kept, full=kept),
        working=Saved(replicated=b * inputs * side**2),
        boundary_bytes=0,
        unit=False,
    )
