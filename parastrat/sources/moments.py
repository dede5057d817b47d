"""The moments at which layers hold most as they run backward, beside what they keep.

Seen operator by operator in dry runs of transformers' modules on torch 2.13 (benchmarks/dry_runs.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.moments import Busy, Halfway
from parastrat.saved import Saved
from parastrat.sources.attending import keeps_scores, scores_gradients
from parastrat.sources.feed_forward import (
    computed_experts,
    drops_within,
    feed_forward,
    largest_weight,
)
from parastrat.sources.layers import (
    FP32_BYTES,
    OF_COMPOSITE,
    Part,
    Setting,
    gradients,
    is_composite,
    joined,
)

if TYPE_CHECKING:
    from parastrat.model import Parameters


def layer_moments(
    setting: Setting, norms: Part, fed: Part, layer: Part, *, mixed: bool
) -> tuple[Busy, ...]:
    """Return the moments at which a layer may hold most beside all it keeps.

    As its feed-forward runs through its activation, with the gradients of the last product's weight; as
    experts begin; and at scores that are kept, where what runs backward before is gone and its gradients
    are there.

    Args:
        setting: what the layer is evaluated for.
        norms: all but the first.
        fed: the feed-forward, or the experts.
        layer: all of it.
        mixed: whether it has experts.
    """
    a, every = setting.architecture, _trainable(layer.parameters)
    width = _width(setting)
    found = [
        Busy(
            working=_before_last(setting, mixed=mixed), meanwhile=_last_weight(setting, mixed=mixed) / every
        )
    ]
    if keeps_scores(setting) and not setting.kernels.fused:
        at_scores = scores_gradients(setting) + Saved(sequence=width) + joined(norms, fed).saved.times(-1)
        made = _trainable(fed.parameters) + a.heads * a.head_dim * a.hidden
        found.append(Busy(working=at_scores, meanwhile=made / every))
    first = _put_back(setting) if mixed else None
    if first is not None:
        rows, parameters = first
        stream = gradients(setting, 0, width, mixed=True)
        found.append(Busy(working=stream + rows, meanwhile=parameters / every))
    return tuple(found)


def _width(setting: Setting) -> int:
    return setting.stream * setting.tokens * setting.architecture.hidden


def _trainable(groups: tuple[Parameters, ...]) -> int:
    return sum(group.trainable for group in groups)


def _before_last(setting: Setting, *, mixed: bool) -> Saved:
    """Return what is made as the activation runs backward, before the last product behind it."""
    a, tokens = setting.architecture, setting.tokens
    experts = a.experts if mixed else None
    inner = (a.ffn if experts is None else experts.ffn * computed_experts(setting)) * tokens
    if setting.kernels.eager and not (mixed or a.gated or a.squared):
        return _before_activation(setting, inner, _width(setting))
    return gradients(setting, inner, _width(setting), mixed=mixed)


def _before_activation(setting: Setting, inner: int, width: int) -> Saved:
    """Return what is made as a feed-forward of two products runs backward through its activation.

    The gradients of its input and of its output, whose place the first takes where that is one kernel which
    does not read it, as GELU. The stream has one gradient by then, in fp32 beside what products read of it,
    and the mask of the last dropout is gone. Where the inner tensor is dropped out too, most is held before
    that: with its gradient, those of the stream and of what the last product gave, which are two tensors.
    """
    a, within = setting.architecture, drops_within(setting)
    tensors = 2 if (a.composite_activation or a.rectified) and not within else 1
    of_output = setting.element * setting.tokens * a.hidden
    if within and setting.autocast:
        # as the layer runs again: T5 brings what dropout gave into the format of the last product's weight,
        # beside what its norm gave, both in fp32 (T5DenseActDense, T5LayerFF)
        return Saved(
            tensor=FP32_BYTES * inner, replicated=of_output, sequence=2 * width - a.hidden * setting.tokens
        )
    return Saved(
        tensor=tensors * setting.element * inner,
        replicated=of_output,
        sequence=(width if within or width > of_output else 0)
        - (a.hidden * setting.tokens if a.dropout else 0),
    )


def _last_weight(setting: Setting, *, mixed: bool) -> int:
    """Return the parameters of the last product, whose gradients are the first that backward makes."""
    a = setting.architecture
    if mixed and a.experts is not None:
        return a.experts.count * a.experts.ffn * a.hidden
    return a.ffn * a.hidden


def _put_back(setting: Setting) -> tuple[Saved, float] | None:
    """Return what lives as backward begins on experts, and the parameters that have their gradients then.

    Transformers weighs what experts give back, puts the rows in the tokens' order and adds up each token's
    (``grouped_mm_experts_forward``, integrations/moe.py). Backward makes the rows' gradients, those of what
    was weighed, and of the weights before they are added up, each as wide as both. A short copy of the
    second takes the place of what experts gave, where that was made again; where it was kept it comes
    beside that, which is left out here. Shared experts, which run behind, have let go of what they kept;
    those with a gate ran before, and a gradient is in the place of what they gave.
    None where experts run otherwise.
    """
    a, b, experts = setting.architecture, setting.element, setting.architecture.experts
    if experts is None or experts.every_token or not setting.kernels.eager:
        return None
    weighed = max(setting.stream, FP32_BYTES if experts.fp32_weights else b)
    rows = Saved(expert=3 * weighed * setting.tokens * experts.top_k * (experts.latent or a.hidden))
    if not experts.shared_ffn or experts.shared_gate:
        return rows, 0.0
    shared = feed_forward(setting, experts.shared_ffn)
    return rows + shared.saved.times(-1), _trainable(shared.parameters)


def halfway(setting: Setting, norms: Part, fed: Part, layer: Part, *, mixed: bool) -> Halfway:
    """Return the moment behind the feed-forward's backward: its gradients are there.

    Experts then have those of what they were given. The backward of a norm in several kernels makes fp32
    tensors; behind another, attention makes most, the gradients of queries, keys, values and its output.
    """
    a, tokens, working = setting.architecture, setting.tokens, _before_last(setting, mixed=mixed)
    inner = Saved(tensor=working.tensor, expert=working.expert)
    made = _trainable(fed.parameters)
    if mixed:
        routed = tokens * computed_experts(setting)
        gone = largest_weight(setting, mixed=True)[1].times(-1)
        own = Saved(expert=setting.element * a.hidden * routed)
    elif a.layer_norms > 1 and is_composite(setting):
        gone, own = fed.saved, Saved(sequence=OF_COMPOSITE * a.hidden * tokens)
    else:
        gone = joined(norms, fed).saved
        own = Saved(tensor=2 * setting.element * tokens * a.head_dim * (a.heads + a.kv_heads))
        made += a.heads * a.head_dim * a.hidden
    return Halfway(
        meanwhile=min(made / _trainable(layer.parameters), 1.0), freed=gone + inner + own.times(-1)
    )
