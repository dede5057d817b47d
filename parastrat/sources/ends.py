"""Closed form of what stands outside the repeated layers: embeddings, patches and heads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.model import Block, Family, Operator, OperatorKind, Parameters, Split
from parastrat.remembered import remembered
from parastrat.saved import Activations, Saved
from parastrat.sources.attending import attention_masks
from parastrat.sources.awaited import awaited_norm
from parastrat.sources.biases import is_biased, made_once
from parastrat.sources.layers import (
    Part,
    Setting,
    convolution,
    elementwise,
    joined,
    matmul,
    norm,
    of_batch,
)
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture

#: the tie group of a table that also makes the logits
TIED = "embedding"
#: that of one that does not, and stands before both stacks
_READ_TWICE = "tokens"
_FP32 = 4
_TOKEN_ID_BYTES = 8
#: where the loss is one kernel, whose intermediates are never whole
_ONE_KERNEL = (Kernels.EAGER_BLOCKS, Kernels.COMPILED_LOSS, Kernels.FUSED, Kernels.FUSED_MATH)
#: frames that each convolution of a speech encoder sees
_SPEECH_KERNEL = 3


def end_block(setting: Setting, name: str, repeat: int, part: Part, *, unit: bool) -> Block:
    """Return parts outside the repeated blocks as one block of the root."""
    width = setting.stream * setting.tokens * setting.architecture.hidden
    kept = part.saved
    return Block(
        name=name,
        repeat=repeat,
        parameters=part.parameters,
        operators=part.operators,
        activations=_outside(kept),
        working=Saved(sequence=width),
        added=max(part.parameters, key=lambda group: group.trainable),
        beside_added=Saved(sequence=width),
        boundary_bytes=width,
        unit=unit,
    )


def _outside(kept: Saved) -> Activations:
    """Return the activations of a block outside the repeated ones, which no policy recomputes."""
    return Activations(none=kept, attention=kept, selective=kept, full=kept)


def table(setting: Setting) -> Parameters:
    """Return the token table, which an encoder and a decoder that both read tokens have in common."""
    a = setting.architecture
    both = a.encoder_layers and not a.audio
    tie = TIED if a.tied else _READ_TWICE if both else None
    return Parameters(trainable=a.vocab * a.hidden, split=_of_vocabulary(setting), tie_group=tie)


def _of_vocabulary(setting: Setting) -> Split:
    """Return how tp divides the table and what predicts its rows.

    ``auto_parallelize`` leaves both whole in transformers' BERT and RoBERTa, whose logits have a bias that
    two modules hold (``predictions.bias`` and ``decoder.bias``).
    """
    whole = setting.architecture.transform_head and not setting.kernels.fused
    return Split.REPLICATED if whole else Split.VOCABULARY


def looked_up(setting: Setting) -> Part:
    """Return looking up tokens, and dropout of what that gives."""
    a, tokens = setting.architecture, setting.tokens
    lookup = Operator(
        kind=OperatorKind.EMBEDDING,
        flops=0,
        bytes=2 * setting.element * a.hidden * tokens * (1 + bool(a.positions) + bool(a.segments)),
        split=Split.SEQUENCE,
    )
    mask = Saved(sequence=a.hidden * tokens if a.dropout else 0, replicated=_TOKEN_ID_BYTES * tokens)
    return Part(operators=(lookup,), saved=mask)


def stack_output(setting: Setting) -> Part:
    """Return the byte mask of dropout behind a stack's last norm."""
    a = setting.architecture
    drops = a.dropout and a.final_dropout and not setting.kernels.fused
    return Part(saved=Saved(sequence=a.hidden * setting.tokens)) if drops else Part()


def kept_or_again(block: Block, once: Saved, again: Saved) -> Activations:
    """Return a block's activations with what stays for all layers behind it, or to run them again."""
    kept = block.activations.none
    return Activations(none=kept + once, attention=kept + once, selective=kept + again, full=kept + again)


def embedding(setting: Setting) -> Block:
    """Return the token table, positions and segments."""
    a = setting.architecture
    others = (a.positions + a.segments) * a.hidden
    behind = a.embedding_norm or a.family is Family.ENCODER
    # what the norm made is kept by the first layer as its input
    normalised = norm(setting, added=False, readers=0) if behind else Part()
    groups = (table(setting), Parameters(trainable=others)) if others else (table(setting),)
    part = joined(Part(parameters=groups), looked_up(setting), normalised)
    block = end_block(setting, "embedding", 1, part, unit=False)
    if is_biased(setting):
        return replace(block, activations=kept_or_again(block, *made_once(setting)))
    if not setting.kernels.eager:
        return block
    # what runs again is given masks again, and the first layer what it takes its stretch of by itself
    whole, masks, kept = block.boundary_bytes, attention_masks(setting), block.activations.none
    again = kept + masks + Saved(replicated=whole, sequence=-whole)
    # attention alone runs again where its core is one kernel
    attention = kept + Saved(fixed=masks.fixed)
    kept_again = replace(block.activations, attention=attention, selective=again, full=again)
    return replace(block, activations=kept_again, masks=masks)


@remembered
def head(setting: Setting) -> Block:
    """Return the final norm, the logits and their cross entropy.

    Eager cross entropy keeps the log-softmax and in backward makes two more of its size, for decoders in
    fp32, beside the logits themselves, which the training script holds. A compiled one keeps the logits and
    makes their gradients; Megatron's keeps the fp32 softmax and works in place. Where tp ranks compute it
    together, it is a stack's whether one tensor more is made or less.
    """
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    parts = [_before_logits(setting)]
    tie = TIED if a.tied else None
    split = _of_vocabulary(setting)
    side = "n" if split is Split.VOCABULARY else ""
    weights = [Parameters(trainable=a.vocab * a.hidden, split=split, tie_group=tie)]
    if a.transform_head or a.head_bias:
        weights.append(Parameters(trainable=a.vocab, split=split))
    # autocast has a log-softmax in fp32 (``fp32_set_opt_dtype`` in torch/csrc/autograd/autocast_mode.h)
    loss = _FP32 if a.family is Family.DECODER or setting.autocast else b
    kept, again = {
        Kernels.EAGER: (loss, 2 * loss),
        Kernels.EAGER_BLOCKS: (b, b),
        Kernels.COMPILED: (loss, 2 * loss),
        Kernels.COMPILED_LOSS: (b, b),
        Kernels.FUSED: (_FP32, b),
        Kernels.FUSED_MATH: (_FP32, b),
    }[setting.kernels]
    logits, one_kernel = a.vocab * tokens, setting.kernels in _ONE_KERNEL
    parts.append(
        Part(
            parameters=tuple(weights),
            operators=(
                replace(matmul(tokens, a.vocab, a.hidden, side), split=split),
                elementwise((b + 4 * _FP32) * logits, split),
            ),
            # a cap keeps its tanh
            saved=Saved(loss=(kept + (b if a.capped_logits else 0)) * logits),
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
        working=Saved(loss=again * logits),
        # the logits' gradient stands for what the loss kept here too
        added=weights[0],
        beside_added=Saved(loss=b * logits - part.saved.loss, sequence=b * tokens * a.hidden),
        # their gradient stands for what the loss kept
        awaited=Saved(
            loss=b * logits - part.saved.loss, sequence=awaited_norm(setting) * tokens * a.hidden
        ),
        boundary_bytes=0,
        output=Saved() if one_kernel else Saved(loss=b * logits),
        loss_parallel_bytes=0.0 if one_kernel else loss * logits,
        # transformers' GPT-2 gives what its last norm made the shape of its input
        between=Saved(replicated=setting.stream * tokens * a.hidden)
        if a.fused_qkv and a.positions and setting.kernels.eager
        else Saved(),
        unit=False,
    )


def _before_logits(setting: Setting) -> Part:
    if setting.architecture.transform_head:
        return _transform(setting)
    if not setting.architecture.final_norm:
        # the product reads what the last layer gives
        whole = setting.element * setting.tokens * setting.architecture.hidden
        return Part(saved=Saved(replicated=whole))
    return joined(norm(setting, added=False, gathered=True), stack_output(setting))


def _transform(setting: Setting) -> Part:
    """Return BERT's masked-token head before the logits: a matrix, GELU and a norm."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    dense = Part(
        parameters=(Parameters(trainable=a.hidden * a.hidden + a.hidden),),
        operators=(matmul(tokens, a.hidden, a.hidden, ""),),
        # what the last layer's norm made, and what GELU reads
        saved=Saved(sequence=2 * b * a.hidden * tokens),
    )
    return joined(dense, norm(setting, added=False, gathered=True))


def _pooler(a: Architecture) -> Part:
    """Return BERT's pooler on one token, and the two-way classifier over it."""
    weights = a.hidden * a.hidden + a.hidden + 2 * a.hidden + 2
    return Part(parameters=(Parameters(trainable=weights),), operators=(matmul(1, a.hidden, a.hidden, ""),))


def patches(setting: Setting) -> Block:
    """Return a vision transformer's patch projection, class token and positions."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    image = a.image
    if image is None:
        raise ValueError("the architecture has no image")
    inputs = image.channels * image.patch**2
    patches = tokens - 1
    part = Part(
        parameters=(Parameters(trainable=(inputs + 1) * a.hidden + (1 + tokens) * a.hidden),),
        operators=(convolution(patches, a.hidden, inputs),),
        saved=Saved(replicated=of_batch(b) * inputs * patches),
    )
    block = end_block(setting, "patches", 1, part, unit=False)
    # gradients of the sum with positions, and of its patches without the class token
    return replace(block, working=Saved(sequence=2 * setting.stream * tokens * a.hidden))


def classifier(setting: Setting) -> Block:
    """Return a vision transformer's last norm and classifier."""
    a, image = setting.architecture, setting.architecture.image
    if image is None:
        raise ValueError("the architecture has no image")
    dense = Part(
        parameters=(Parameters(trainable=a.hidden * image.classes + image.classes),),
        operators=(matmul(1, image.classes, a.hidden, ""),),
        saved=Saved(replicated=setting.element * (a.hidden + image.classes)),
    )
    # of the norm's output autocast copies the one token alone
    last = norm(setting, added=False, readers=0 if setting.autocast else 1)
    return replace(end_block(setting, "head", 1, joined(last, dense), unit=False), boundary_bytes=0)


def spectrogram(setting: Setting) -> Block:
    """Return a speech encoder's two convolutions, each with a GELU, and its fixed positions.

    Eager kernels keep what each convolution and each GELU reads; compiled ones compute the GELUs again.
    """
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    audio = a.audio
    if audio is None:
        raise ValueError("the architecture hears nothing")
    bands, outputs = audio.channels * audio.frames, a.hidden * (audio.frames + tokens)
    heard = of_batch(b) * bands
    between = a.hidden * audio.frames if not setting.kernels.compiled else 0
    weights = (_SPEECH_KERNEL * (audio.channels + a.hidden) + 2) * a.hidden
    part = Part(
        parameters=(Parameters(trainable=weights, frozen=tokens * a.hidden),),
        operators=(
            convolution(audio.frames, a.hidden, _SPEECH_KERNEL * audio.channels),
            convolution(tokens, a.hidden, _SPEECH_KERNEL * a.hidden),
            elementwise(b * (2 * outputs + 2 * a.hidden * tokens), Split.REPLICATED),
        ),
        saved=Saved(replicated=heard + b * (outputs + between)),
    )
    block = end_block(setting, "spectrogram", 1, part, unit=False)
    # gradients of the longest tensor and of its source
    return replace(block, working=Saved(replicated=2 * b * a.hidden * audio.frames))
