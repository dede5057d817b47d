"""Closed form of diffusion transformers with adaLN-Zero blocks (DiT: Peebles and Xie, arXiv:2212.09748).

A block's norms have no weights; scale, shift and gate of each half are made from one vector a sample, of
the noise level and the class (section 3.2, figure 3). Samples are latents of an autoencoder, with noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parastrat.model import Block, Family, ModelSpec, Parameters, Split
from parastrat.saved import Saved
from parastrat.sources.architecture import Architecture, Norm
from parastrat.sources.attending import attention
from parastrat.sources.casts import with_autocast
from parastrat.sources.ends import end_block
from parastrat.sources.feed_forward import feed_forward
from parastrat.sources.layers import (
    Part,
    Setting,
    activations,
    convolution,
    elementwise,
    joined,
    matmul,
    norm,
    of_batch,
)
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.workload import Precision

#: scale, shift and gate of attention and of the feed-forward; of the last norm scale and shift alone
_BLOCK_VECTORS, _LAST_VECTORS = 6, 2
#: sines and cosines that stand for a noise level (https://github.com/facebookresearch/DiT, models.py)
_FREQUENCIES = 256
#: the noise and its variance are predicted
_PREDICTED = 2
_FFN = 4
_CLASS_ID_BYTES = 8
_CAVEATS = (
    "the autoencoder that makes the latents is not counted",
    "an average of the weights over the steps, as DiT keeps, is not counted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionTransformer:
    """A DiT on latents of one size."""

    name: str
    layers: int
    hidden: int
    heads: int
    #: side and channels of a latent, and side of a patch of it
    latent_size: int
    channels: int
    patch: int
    #: classes of the condition; one more stands for none
    classes: int
    source: str = ""

    @property
    def family(self) -> Family:
        """What the network is."""
        return Family.VISION_TRANSFORMER

    def at(self, precision: Precision, kernels: Kernels, ref: str) -> ModelSpec:
        """Return the closed form."""
        return diffusion_transformer(self, precision, kernels, ref)

    @property
    def tokens(self) -> int:
        """Patches of a latent."""
        return (self.latent_size // self.patch) ** 2


def diffusion_transformer(
    network: DiffusionTransformer, precision: Precision, kernels: Kernels, ref: str
) -> ModelSpec:
    """Return the network with the loss on its prediction."""
    setting = Setting(
        architecture=_architecture(network),
        tokens=network.tokens,
        element=precision.compute_bytes,
        kernels=kernels,
    )
    blocks = with_autocast(
        lambda cast: _chain(network, replace(setting, autocast=cast)), precision, kernels
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
        layers=network.layers,
        positions=network.tokens,
        hidden=network.hidden,
        heads=network.heads,
        kv_heads=network.heads,
        changing_buffers=False,
        routed=False,
        source=network.source,
        caveats=_CAVEATS,
    )


def _chain(network: DiffusionTransformer, setting: Setting) -> tuple[Block, ...]:
    return _patches(network, setting), _layers(network.layers, setting), _head(network, setting)


def _architecture(network: DiffusionTransformer) -> Architecture:
    return Architecture(
        name=network.name,
        family=Family.VISION_TRANSFORMER,
        layers=network.layers,
        hidden=network.hidden,
        heads=network.heads,
        kv_heads=network.heads,
        head_dim=network.hidden // network.heads,
        ffn=_FFN * network.hidden,
        vocab=1,
        norm=Norm.BARE,
        gated=False,
        tied=False,
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        fused_qkv=True,
        # no rotary embedding; the table itself is the patches'
        positions=network.tokens,
    )


def _layers(repeat: int, setting: Setting) -> Block:
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    width = setting.stream * tokens * a.hidden
    # the vectors are made first
    part = joined(
        _modulation(setting, _BLOCK_VECTORS, halves=2, gated=True),
        norm(setting, added=True),
        attention(setting, causal=False),
        norm(setting, added=True),
        feed_forward(setting),
    )
    # gradients before and behind GELU, which takes the place of its output; of the residual and its branch
    tensors = 1 if setting.kernels.eager else 2
    return Block(
        name="layer",
        repeat=repeat,
        parameters=part.parameters,
        operators=part.operators,
        activations=activations(part, width),
        working=Saved(tensor=tensors * b * tokens * a.ffn, sequence=tensors * width),
        # with the condition, which every layer reads
        boundary_bytes=width + setting.stream * a.hidden,
        tensor_parallel_collectives=2,
        tensor_parallel_bytes=b * tokens * a.hidden,
        context_parallel_bytes=2 * b * tokens * a.hidden,
    )


def _modulation(setting: Setting, vectors: int, *, halves: int, gated: bool) -> Part:
    """Return the vectors made of the condition, and what scaling, shifting and gating with them keeps.

    Their gradients need what they multiply: each norm's output before it is scaled, which compiled kernels
    compute again, and each branch's output before its gate.
    """
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    width = b * a.hidden
    kept = (0 if setting.kernels.compiled else setting.stream) + (b if gated else 0)
    # SiLU's output, the vectors, and one plus each scale
    condition = (1 + vectors + halves) * width
    passes = 2 * (2 if gated else 1)
    return Part(
        parameters=(Parameters(trainable=vectors * (a.hidden + 1) * a.hidden),),
        operators=(
            matmul(1, vectors * a.hidden, a.hidden, ""),
            elementwise(halves * passes * width * tokens, Split.SEQUENCE),
        ),
        saved=Saved(sequence=halves * kept * a.hidden * tokens, replicated=condition),
        outputs=(Saved(replicated=vectors * width),),
    )


def _patches(network: DiffusionTransformer, setting: Setting) -> Block:
    """Return the patches' projection, fixed positions, and the condition: noise level and class."""
    h, tokens, b = network.hidden, setting.tokens, setting.element
    inputs = network.channels * network.patch**2
    condition = (_FREQUENCIES + 1 + h + 1) * h + (network.classes + 1) * h
    part = Part(
        parameters=(Parameters(trainable=(inputs + 1) * h + condition, frozen=tokens * h),),
        operators=(
            convolution(tokens, h, inputs),
            matmul(1, h, _FREQUENCIES, ""),
            matmul(1, h, h, ""),
            elementwise(2 * b * h * tokens, Split.REPLICATED),
        ),
        # latents; frequencies, the perceptron's inner vector on both sides of SiLU, and the condition
        saved=Saved(
            replicated=of_batch(b) * (inputs * tokens + _FREQUENCIES) + 3 * b * h + _CLASS_ID_BYTES
        ),
    )
    return end_block(setting, "patches", 1, part, unit=False)


def _head(network: DiffusionTransformer, setting: Setting) -> Block:
    """Return the last norm, modulated, the prediction of each patch, and its squared error."""
    h, tokens = network.hidden, setting.tokens
    latent = network.channels * network.patch**2
    outputs = _PREDICTED * latent
    dense = Part(
        parameters=(Parameters(trainable=(h + 1) * outputs),),
        operators=(matmul(tokens, outputs, h, ""),),
        # the prediction in the latent's layout, and the noise
        saved=Saved(replicated=setting.stream * (outputs + latent) * tokens),
    )
    part = joined(
        norm(setting, added=False), _modulation(setting, _LAST_VECTORS, halves=1, gated=False), dense
    )
    return replace(end_block(setting, "head", 1, part, unit=False), boundary_bytes=0)
