"""Closed form of relative position biases, which T5 adds to its scores (arXiv:1910.10683, section 2.1).

The first layer of each stack makes them of a table of its own, for all heads and pairs of positions, and
passes them on. They are the same for every sample. Source: transformers, models/t5/modeling_t5.py and
integrations/sdpa_attention.py (``create_position_bias_mask``), whose attention runs in the kernel that
takes a bias. Hand-fused stacks have a form of their own, which counts none of it.
"""

from __future__ import annotations

from parastrat.moments import Busy
from parastrat.saved import NOTHING, Saved
from parastrat.sources.layers import Part, Setting

#: of the bucket of each pair, by which the table is looked up
_INDEX_BYTES = 8


def is_biased(setting: Setting) -> bool:
    """Return whether attention takes a bias for each pair."""
    return bool(setting.architecture.relative_buckets) and not setting.kernels.fused


def passed_on(setting: Setting, memory_tokens: int = 0) -> Saved:
    """Return the biases as layers hand them on, and as their gradients are added up: heads x pairs.

    With the zeros for ``memory_tokens`` of an encoder, which have no gradient.
    """
    if not is_biased(setting):
        return NOTHING
    own, heads, tokens = setting.stream * setting.tokens, setting.architecture.heads, setting.tokens
    return Saved(fixed=heads * tokens * (own + setting.element * memory_tokens))


def kept_biases(setting: Setting, *, causal: bool) -> Part:
    """Return the copy that a layer's attention to its own stack reads, in the products' format.

    The table gives heads as the last dimension, so that each layer makes a contiguous copy. A decoder's has
    the pairs that it hides written over, for whose gradients it keeps which these are, a byte a pair.
    """
    if not is_biased(setting):
        return Part()
    pairs = setting.tokens**2
    shown = pairs if causal else 0
    return Part(saved=Saved(fixed=setting.element * setting.architecture.heads * pairs + shown))


def made_once(setting: Setting, memory_tokens: int | None = None) -> tuple[Saved, Saved]:
    """Return what the first layer of a stack keeps for all of them, and what checkpoints hold instead.

    That is the bucket of each pair, and of a decoder the zeros that attention to an encoder of
    ``memory_tokens`` takes for biases; checkpoints hold the biases, and those zeros.
    """
    if not is_biased(setting):
        return NOTHING, NOTHING
    heads, tokens = setting.architecture.heads, setting.tokens
    zeros = Saved(fixed=setting.element * heads * tokens * (memory_tokens or 0))
    return Saved(fixed=_INDEX_BYTES * tokens**2) + zeros, passed_on(setting) + zeros


def at_biases(setting: Setting, gone: Part, layer: Part) -> Busy:
    """Return the moment at which attention with biases runs backward.

    Its kernel makes gradients of the biases for every sample, beside those of queries, keys and values.
    That of its output is there, and the stream's.

    Args:
        setting: what the layer is evaluated for.
        gone: what stands behind attention's output, which has run backward: norms, attention to another
            stack, the feed-forward, and masks of dropout.
        layer: all of it.
    """
    a, b, tokens = setting.architecture, setting.element, setting.tokens
    widths = 2 * a.head_dim * (a.heads + a.kv_heads)
    made = _trainable(gone) + a.heads * a.head_dim * a.hidden
    own = Saved(
        # of all heads on every tp rank, as attention is
        replicated=b * tokens * (widths + a.heads * tokens),
        sequence=setting.stream * tokens * a.hidden,
    )
    return Busy(working=own + gone.saved.times(-1), meanwhile=made / _trainable(layer))


def _trainable(part: Part) -> int:
    return sum(group.trainable for group in part.parameters)
