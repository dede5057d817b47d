"""Closed form of whole transformers: an architecture at one sequence length as a chain of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.model import (
    Activations,
    Block,
    Family,
    ModelSpec,
    Operator,
    OperatorKind,
    Parameters,
    Saved,
    Split,
)
from parastrat.sources.feed_forward import feed_forward, mixture
from parastrat.sources.layers import (
    Part,
    Setting,
    activations,
    attention,
    dropout_masks,
    elementwise,
    joined,
    matmul,
    norm,
)
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture
    from parastrat.workload import Precision

_TIED = "embedding"
_FP32 = 4
_TOKEN_ID_BYTES = 8


def transformer(
    architecture: Architecture,
    sequence_length: int | None,
    precision: Precision,
    kernels: Kernels,
    ref: str,
) -> ModelSpec:
    """Return the model at a sequence length, in tokens; images bring their own."""
    image = architecture.image
    tokens = image.tokens if image else (sequence_length or 1)
    setting = Setting(
        architecture=architecture, tokens=tokens, element=precision.compute_bytes, kernels=kernels
    )
    if architecture.family is Family.ENCODER_DECODER:
        blocks = _encoder_decoder(setting)
    elif image:
        blocks = (
            _patches(setting),
            _layer(setting, architecture.layers, causal=False),
            _classifier(setting),
        )
    else:
        blocks = _single_stack(setting)
    total, active = _counts(blocks, architecture)
    causal = architecture.family in (Family.DECODER, Family.ENCODER_DECODER)
    return ModelSpec(
        ref=ref,
        name=architecture.name,
        family=architecture.family,
        blocks=blocks,
        parameters=total,
        active_parameters=active,
        sequence_length=None if image else sequence_length,
        precision=precision,
        causal=causal,
        layers=architecture.layers + architecture.encoder_layers,
        hidden=architecture.hidden,
        heads=architecture.heads,
        kv_heads=architecture.kv_heads,
        vocab=None if image else architecture.vocab,
        experts=architecture.experts.count if architecture.experts else None,
        max_sequence_length=architecture.max_sequence_length,
        source=architecture.source,
        caveats=_caveats(architecture),
    )


def _caveats(a: Architecture) -> tuple[str, ...]:
    found = []
    if a.family is Family.ENCODER_DECODER:
        found.append("the decoder's sequence is taken as long as the encoder's")
    if a.experts:
        found.append("tokens are taken to spread evenly over the experts")
    return tuple(found)


def _counts(blocks: tuple[Block, ...], a: Architecture) -> tuple[int, int]:
    """Return all parameters, ties once, and those that one token uses."""
    ties: dict[str, int] = {}
    total = unused = 0
    for block in blocks:
        for group in block.parameters:
            if group.tie_group is not None:
                ties[group.tie_group] = group.count
                continue
            total += group.count * block.repeat
            if group.split is Split.EXPERT and a.experts:
                idle = 1 - a.experts.top_k / a.experts.count
                unused += round(group.count * block.repeat * idle)
    total += sum(ties.values())
    return total, total - unused


def _single_stack(setting: Setting) -> tuple[Block, ...]:
    a = setting.architecture
    causal = a.family is Family.DECODER
    if a.experts is None:
        stacks = (_layer(setting, a.layers, causal=causal),)
    else:
        dense = a.experts.dense_layers
        first = (_layer(setting, dense, causal=causal),) if dense else ()
        stacks = (*first, _layer(setting, a.layers - dense, causal=causal, mixed=True))
    return (_embedding(setting), *stacks, _head(setting))


def _encoder_decoder(setting: Setting) -> tuple[Block, ...]:
    a = setting.architecture
    encoder = _layer(setting, a.encoder_layers, causal=False, name="encoder layer")
    decoder = _layer(setting, a.layers, causal=True, name="decoder layer", crossed=True)
    between = joined(norm(setting, added=False), _buckets(a))
    border = _block(setting, "encoder output", 1, between, unit=False)
    return (_embedding(setting), encoder, border, decoder, _head(setting))


def _buckets(a: Architecture) -> Part:
    """Return the relative position tables, one in each stack."""
    return Part(parameters=(Parameters(trainable=2 * a.relative_buckets * a.heads),))


def _layer(
    setting: Setting,
    repeat: int,
    *,
    causal: bool,
    mixed: bool = False,
    crossed: bool = False,
    name: str = "layer",
) -> Block:
    a, width = setting.architecture, setting.element * setting.tokens * setting.architecture.hidden
    parts = [norm(setting, added=True), attention(setting, causal=causal)]
    if crossed:
        parts += [norm(setting, added=True), attention(setting, causal=False, memory_tokens=setting.tokens)]
    parts += [norm(setting, added=True), mixture(setting) if mixed else feed_forward(setting)]
    parts.append(dropout_masks(setting))
    routed = a.experts.top_k * width if mixed and a.experts else 0
    inner = (a.experts.ffn * a.experts.top_k if a.experts and mixed else a.ffn) * setting.tokens
    part = joined(*parts)
    return Block(
        name="expert " + name if mixed else name,
        repeat=repeat,
        parameters=part.parameters,
        operators=part.operators,
        activations=activations(part, (2 if crossed else 1) * width),
        # gradients of the inner tensors, and of the residual and its branch
        working=Saved(tensor=2 * setting.element * inner, sequence=2 * width),
        boundary_bytes=(2 if crossed else 1) * width,
        tensor_parallel_collectives=3 if crossed else 2,
        tensor_parallel_bytes=width,
        expert_parallel_bytes=routed,
        context_parallel_bytes=2 * setting.element * setting.tokens * a.kv_heads * a.head_dim,
    )


def _block(setting: Setting, name: str, repeat: int, part: Part, *, unit: bool) -> Block:
    width = setting.element * setting.tokens * setting.architecture.hidden
    kept = part.saved
    return Block(
        name=name,
        repeat=repeat,
        parameters=part.parameters,
        operators=part.operators,
        activations=_outside(kept),
        working=Saved(sequence=width),
        boundary_bytes=width,
        unit=unit,
    )


def _outside(kept: Saved) -> Activations:
    """Return the activations of a block outside the repeated ones, which no policy recomputes."""
    return Activations(none=kept, attention=kept, selective=kept, full=kept)


def _embedding(setting: Setting) -> Block:
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    table = Parameters(
        trainable=a.vocab * a.hidden, split=Split.TENSOR, tie_group=_TIED if a.tied else None
    )
    others = (a.positions + a.segments) * a.hidden
    lookup = Operator(
        kind=OperatorKind.EMBEDDING,
        flops=0,
        bytes=2 * b * a.hidden * tokens * (1 + bool(a.positions) + bool(a.segments)),
        split=Split.SEQUENCE,
    )
    normalised = norm(setting, added=False) if a.family is Family.ENCODER else Part()
    mask = Saved(sequence=a.hidden * tokens if a.dropout else 0, replicated=_TOKEN_ID_BYTES * tokens)
    groups = (table, Parameters(trainable=others)) if others else (table,)
    part = joined(Part(parameters=groups, operators=(lookup,), saved=mask), normalised)
    return _block(setting, "embedding", 1, part, unit=False)


def _head(setting: Setting) -> Block:
    """Return the final norm, the logits and their cross entropy.

    Eager cross entropy keeps the log-softmax and in backward makes two more of its size, for decoders in
    fp32; compiled kernels keep the logits; Megatron's keep the fp32 softmax and work in place.
    """
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    parts = [_transform(setting) if a.transform_head else norm(setting, added=False)]
    tie = _TIED if a.tied else None
    weights = [Parameters(trainable=a.vocab * a.hidden, split=Split.TENSOR, tie_group=tie)]
    if a.transform_head:
        weights.append(Parameters(trainable=a.vocab, split=Split.TENSOR))
    loss = _FP32 if a.family is Family.DECODER else b
    kept, again = {
        Kernels.EAGER: (loss, 2 * loss),
        Kernels.COMPILED: (b, b + _FP32),
        Kernels.FUSED: (_FP32, b),
    }[setting.kernels]
    logits = a.vocab * tokens
    parts.append(
        Part(
            parameters=tuple(weights),
            operators=(
                matmul(tokens, a.vocab, a.hidden, "n"),
                elementwise((b + 4 * _FP32) * logits, Split.TENSOR),
            ),
            saved=Saved(tensor=kept * logits),
        )
    )
    if a.pooler:
        parts.append(_pooler(a))
    part = joined(*parts)
    return Block(
        name="head",
        repeat=1,
        parameters=part.parameters,
        operators=part.operators,
        activations=_outside(part.saved),
        working=Saved(tensor=again * logits),
        boundary_bytes=0,
        unit=False,
    )


def _transform(setting: Setting) -> Part:
    """Return BERT's masked-token head before the logits: a matrix, GELU and a norm."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    dense = Part(
        parameters=(Parameters(trainable=a.hidden * a.hidden + a.hidden),),
        operators=(matmul(tokens, a.hidden, a.hidden, ""),),
        saved=Saved(sequence=b * a.hidden * tokens),
    )
    return joined(dense, norm(setting, added=False))


def _pooler(a: Architecture) -> Part:
    """Return BERT's pooler on one token, and the two-way classifier over it."""
    weights = a.hidden * a.hidden + a.hidden + 2 * a.hidden + 2
    return Part(parameters=(Parameters(trainable=weights),), operators=(matmul(1, a.hidden, a.hidden, ""),))


def _patches(setting: Setting) -> Block:
    """Return a vision transformer's patch projection, class token and positions."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    image = a.image
    if image is None:
        raise ValueError("the architecture has no image")
    inputs = image.channels * image.patch**2
    patches = tokens - 1
    project = Operator(
        kind=OperatorKind.CONVOLUTION,
        flops=2 * patches * a.hidden * inputs,
        bytes=0,
        m=patches,
        n=a.hidden,
        k=inputs,
    )
    part = Part(
        parameters=(Parameters(trainable=(inputs + 1) * a.hidden + (1 + tokens) * a.hidden),),
        operators=(project,),
        saved=Saved(replicated=b * inputs * patches),
    )
    return _block(setting, "patches", 1, part, unit=False)


def _classifier(setting: Setting) -> Block:
    a, image = setting.architecture, setting.architecture.image
    if image is None:
        raise ValueError("the architecture has no image")
    dense = Part(
        parameters=(Parameters(trainable=a.hidden * image.classes + image.classes),),
        operators=(matmul(1, image.classes, a.hidden, ""),),
        saved=Saved(replicated=setting.element * (a.hidden + image.classes)),
    )
    return _block(setting, "head", 1, joined(norm(setting, added=False), dense), unit=False)
