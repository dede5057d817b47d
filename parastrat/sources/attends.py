"""What attention's backward makes where the ranks of a sequence gather keys and values.

Seen operator by operator in dry runs of transformers' modules on torch 2.13 (benchmarks/dry_runs.py); the
exchange is ``parastrat.runtime.context_parallel.attention``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.model import Family
from parastrat.moments import Attends
from parastrat.saved import Saved
from parastrat.sources.attending import keeps_scores, masked_share
from parastrat.sources.layers import Part, Setting, joined

if TYPE_CHECKING:
    from parastrat.model import Parameters
    from parastrat.moments import Busy


def attends(setting: Setting, norms: Part, fed: Part, layer: Part, first: Busy) -> Attends | None:
    """Return the moment at which a layer's attention runs backward; None where nothing is gathered.

    What stands behind it is gone, and its parameters' gradients are there. Of a causal model each rank has
    a stretch of queries from either end. The later one reads all keys: gathered keys and values are there,
    their gradients, and those of one of them once more, padded to all positions. When the earlier one runs,
    what was padded of both is there, the gradients of queries in the same way, and those of the few keys
    that it reads. The projection behind reads what the stretches gave in one tensor, of its own until then.
    Behind a mask queries are one stretch.

    Args:
        setting: what the layer is evaluated for.
        norms: all but the first.
        fed: the feed-forward, or the experts.
        layer: all of it.
        first: the first of its moments, from which ``freed`` is told.
    """
    a = setting.architecture
    if not setting.kernels.eager or keeps_scores(setting):
        return None
    queries, keys, values, output = (
        Saved(tensor=setting.element * setting.tokens * width) for width in _widths(setting)
    )
    both = keys + values
    moments: tuple[tuple[Saved, Saved], ...] = ((both.times(2), queries),)
    pieces = Saved()
    if a.family is Family.DECODER and not masked_share(setting, setting.tokens):
        larger = max(keys, values, key=lambda each: each.total)
        pieces, moments = (
            output,
            (
                (both.times(2) + larger, queries.times(0.5)),
                (both.times(2), queries.times(1.5) + both.times(0.5)),
            ),
        )
    # of the stream there is one gradient, and that of attention's output
    own = Saved(sequence=setting.stream * setting.tokens * a.hidden) + output
    made = _trainable(fed.parameters) + _widths(setting)[-1] * a.hidden
    return Attends(
        meanwhile=min(made / _trainable(layer.parameters), 1.0),
        freed=joined(norms, fed).saved + first.working + own.times(-1),
        gathered=both,
        joined=pieces,
        moments=moments,
    )


def _widths(setting: Setting) -> tuple[int, int, int, int]:
    """Return the elements that queries, keys, values and attention's output have for each token.

    Where there is a mask, keys and values are repeated for the queries that share them, and gathered so.
    """
    a = setting.architecture
    if a.latent is not None:
        keys, values = a.heads * (a.latent.nope_dim + a.latent.rope_dim), a.heads * a.latent.v_dim
        return keys, keys, values, values
    every = a.heads * a.head_dim
    shared = every if masked_share(setting, setting.tokens) else a.kv_heads * a.head_dim
    return every, shared, shared, every


def _trainable(groups: tuple[Parameters, ...]) -> int:
    return sum(group.trainable for group in groups)
