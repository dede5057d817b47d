"""Closed form of an encoder and a decoder in one model: tokens in both, or a spectrogram in the first."""

from __future__ import annotations

from dataclasses import replace

from parastrat.model import Block, Parameters
from parastrat.saved import Saved
from parastrat.sources.biases import made_once, passed_on
from parastrat.sources.ends import (
    embedding,
    end_block,
    head,
    kept_or_again,
    looked_up,
    spectrogram,
    stack_output,
    table,
)
from parastrat.sources.layers import Part, Setting, joined, norm
from parastrat.sources.one_layer import layer


def encoder_decoder(setting: Setting) -> tuple[Block, ...]:
    """Return both stacks; what is heard has a length of its own."""
    a = setting.architecture
    source = replace(setting, tokens=a.audio.tokens) if a.audio else setting
    encoder = layer(source, a.encoder_layers, causal=False, name="encoder layer")
    decoder = layer(setting, a.layers, causal=True, name="decoder layer", memory_tokens=source.tokens)
    if not setting.kernels.fused:
        memory = Saved(replicated=source.stream * source.tokens * a.hidden)
        # transformers returns the encoder's output too, which a training script holds while backward runs
        encoder = _beside(encoder, memory + passed_on(source))
        # its gradient, and that of biases, is added up from layer to layer
        decoder = _beside(decoder, memory + passed_on(setting))
    tokens, border = embedding(setting), _border(source, setting)
    if not a.audio:
        return (tokens, encoder, border, decoder, head(setting))
    # gradients of blocks before it, as it makes its table's, are not there yet
    beside = replace(tokens, boundary_bytes=decoder.boundary_bytes, meanwhile=0.0)
    return (spectrogram(source), encoder, border, beside, decoder, head(setting))


def _beside(block: Block, there: Saved) -> Block:
    """Return a layer with what else is there at each moment of its backward."""
    return replace(
        block,
        working=block.working + there,
        busy=tuple(replace(each, working=each.working + there) for each in block.busy),
        beside_added=block.beside_added + there,
    )


def _border(source: Setting, setting: Setting) -> Block:
    """Return what stands between the stacks: the encoder's last norm, and the decoder's tokens, if any.

    Both stacks read one table. Under autocast each layer keeps short copies of the encoder's output, which
    is there itself where layers run again.
    """
    a, width = source.architecture, source.stream * source.tokens * source.architecture.hidden
    buckets = Part(parameters=(Parameters(trainable=2 * a.relative_buckets * a.heads),))
    parts = [norm(source, added=False, readers=0 if source.autocast else 1), stack_output(source), buckets]
    if not a.audio:
        parts += [looked_up(setting), Part(parameters=(table(setting),))]
    block = end_block(source, "encoder output", 1, joined(*parts), unit=False)
    once, again = made_once(setting, source.tokens)
    if source.autocast:
        again += Saved(sequence=width)
    boundary = width if a.audio else width + setting.stream * setting.tokens * a.hidden
    activations = kept_or_again(block, once, again)
    # gradients of blocks before it, as it makes the table's, are not there yet
    return replace(block, activations=activations, boundary_bytes=boundary, meanwhile=0.0)
