"""Closed form of repeated layers: norms, attention to one stack or two, and a feed-forward."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.model import Block
from parastrat.saved import Saved
from parastrat.sources.attending import attention, hidden_flops
from parastrat.sources.attends import attends
from parastrat.sources.awaited import awaited, retained
from parastrat.sources.biases import at_biases, is_biased, kept_biases, passed_on
from parastrat.sources.feed_forward import feed_forward, largest_weight, mixture
from parastrat.sources.layers import (
    Part,
    Setting,
    activations,
    copies_input,
    dropout_masks,
    gradients,
    is_composite,
    joined,
    norm,
    takes_stretch,
    undivided,
)
from parastrat.sources.moments import halfway, layer_moments
from parastrat.sources.stretches import stretches

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture

#: additions to the residual in a layer: attention's output and the feed-forward's
_ADDITIONS = 2


def _readers(a: Architecture, index: int) -> int:
    """Return how many products read a norm: the first attention's, the second the feed-forward's."""
    attended, fed = 1 if a.fused_qkv else 3, 2 if a.gated and not a.fuses_gate else 1
    if a.layer_norms == 1:
        return attended + fed
    return (attended, fed)[index] if index < _ADDITIONS else 0


def _norm_at(setting: Setting, index: int, *, mixed: bool) -> Part:
    """Return one of a layer's norms; the input of a second that stands beside the first is kept by that.

    Tensor parallelism gathers its output for attention and for the feed-forward: twice where both read one.
    """
    own = norm(
        setting,
        added=index < _ADDITIONS,
        readers=_readers(setting.architecture, index),
        routed=mixed and index == 1 and takes_stretch(setting),
    )
    if setting.architecture.layer_norms == 1 and not (setting.autocast or setting.kernels.fused):
        again = setting.element * setting.tokens * setting.architecture.hidden
        return replace(own, saved=own.saved + Saved(replicated=again, sequence=-again))
    if not (setting.architecture.parallel and index == 1) or is_composite(setting) or setting.kernels.fused:
        return own
    width = setting.stream * setting.tokens * setting.architecture.hidden
    return replace(own, saved=own.saved + Saved(sequence=-width))


def layer(
    setting: Setting,
    repeat: int,
    *,
    causal: bool,
    mixed: bool = False,
    memory_tokens: int | None = None,
    name: str = "layer",
) -> Block:
    """Return equal layers; those of a decoder also attend to the tokens of an encoder, its memory.

    Args:
        setting: what they are evaluated for.
        repeat: how many.
        causal: a query sees the keys before it alone.
        mixed: experts take the place of the feed-forward.
        memory_tokens: of an encoder; None without one.
        name: of the block.
    """
    a, width = setting.architecture, setting.stream * setting.tokens * setting.architecture.hidden
    crossed = memory_tokens is not None
    memory = setting.stream * (memory_tokens or 0) * a.hidden
    norms = [_norm_at(setting, index, mixed=mixed) for index in range(a.layer_norms)]
    attended = _attending(setting, kept_biases(setting, causal=causal), causal=causal)
    crossing = _crossing(setting, memory_tokens)
    fed = mixture(setting) if mixed else feed_forward(setting)
    masks = dropout_masks(setting, branches=_ADDITIONS + crossed)
    routed = a.experts.top_k if mixed and a.experts else 0
    part, second = joined(*norms, attended, crossing, fed, masks), joined(*norms[1:])
    moments = layer_moments(setting, second, fed, part, mixed=mixed)
    if is_biased(setting) and setting.kernels.eager:
        moments += (at_biases(setting, joined(second, crossing, fed, masks), part),)
    added, beside = largest_weight(setting, mixed=mixed)
    taken = stretches(setting, attended)
    return Block(
        name="expert " + name if mixed else name,
        repeat=repeat,
        parameters=part.parameters,
        operators=part.operators,
        # checkpoints of all layers hold the encoder's output, which is one tensor and counted there
        activations=activations(part, width),
        working=moments[0].working,
        meanwhile=moments[0].meanwhile,
        busy=moments if len(moments) > 1 else (),
        halfway=halfway(setting, second, fed, part, mixed=mixed),
        added=added,
        beside_added=gradients(setting, 0, width, mixed=mixed) + beside,
        stretched=taken.stretched,
        regathered=taken.regathered,
        behind_regathered=taken.behind,
        unshared=taken.unshared,
        awaited=awaited(setting, part, a.layer_norms + crossed),
        retained=retained(setting),
        copies_input=copies_input(setting),
        boundary_bytes=width + memory,
        boundary_fixed=passed_on(setting, memory_tokens or 0).fixed,
        hidden_flops=hidden_flops(setting) if causal else 0.0,
        # of attention that every rank computes whole nothing is added up
        tensor_parallel_collectives=1 if is_biased(setting) else 2 + crossed,
        tensor_parallel_bytes=setting.element * setting.tokens * a.hidden,
        expert_parallel_bytes=routed * setting.element * setting.tokens * a.hidden,
        experts_per_token=routed,
        context_parallel_bytes=2 * setting.element * setting.tokens * a.kv_heads * a.head_dim,
        attends=None if crossed else attends(setting, second, fed, part, moments[0]),
    )


def _attending(
    setting: Setting, biases: Part | None = None, *, causal: bool, memory_tokens: int | None = None
) -> Part:
    """Return attention, with what it keeps of biases.

    ``auto_parallelize`` leaves attention with biases whole on every tp rank, as a table gives those of all
    heads at once (``runtime.tensor_parallel.derived``).
    """
    own = attention(setting, causal=causal, memory_tokens=memory_tokens)
    if biases is not None:
        own = joined(own, biases)
    return undivided(own) if is_biased(setting) else own


def _crossing(setting: Setting, memory_tokens: int | None) -> Part:
    """Return attention to an encoder's tokens, with its norm.

    Under autocast keys and values each keep a short copy of the encoder's output.
    """
    if memory_tokens is None:
        return Part()
    memory = setting.element * memory_tokens * setting.architecture.hidden
    return joined(
        norm(setting, added=True),
        _attending(setting, causal=False, memory_tokens=memory_tokens),
        Part(saved=Saved(replicated=2 * memory if setting.autocast else 0)),
    )
