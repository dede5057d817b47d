"""At which moments layers hold most as they run backward, counted by hand on a small one.

Width 8, a feed-forward of 20 unless told otherwise, 10 tokens, 2 bytes an element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import SMALL

from parastrat.model import Block
from parastrat.moments import Busy
from parastrat.saved import Saved
from parastrat.sources.architecture import Experts, Norm, Scores
from parastrat.sources.transformer import transformer
from parastrat.stack import Kernels
from parastrat.workload import Precision

T, WIDTH, INNER = 10, 2 * 10 * 8, 2 * 10 * SMALL.ffn
PLAIN = {"gated": False, "norm": Norm.LAYER}
EXPERTS = Experts(count=4, top_k=2, ffn=6)


def layer(kernels: Kernels = Kernels.EAGER, **changes: Any) -> Block:
    a = replace(SMALL, **changes)
    return transformer(a, T, Precision.BF16_MIXED, kernels, "small").blocks[1]


@pytest.mark.parametrize(
    ("changes", "tensors"),
    [({}, 1), ({"composite_activation": True}, 2), ({"rectified": True}, 2)],
    ids=["gelu", "composite", "relu"],
)
def test_an_activation_of_one_kernel_makes_one_gradient(changes: dict[str, Any], tensors: int) -> None:
    made = layer(**PLAIN, **changes).working
    assert made == Saved(tensor=tensors * INNER, replicated=WIDTH)


def test_behind_an_activation_the_last_dropouts_mask_is_gone() -> None:
    plain, drops = (layer(**PLAIN, dropout=dropout).working for dropout in (False, True))
    assert drops == plain + Saved(sequence=-8 * T)


def test_a_square_and_a_gate_make_two_gradients_beside_two_of_the_stream() -> None:
    for changes in ({}, PLAIN | {"squared": True}):
        assert layer(**changes).working == Saved(tensor=2 * INNER, replicated=2 * WIDTH)


def test_under_autocast_the_stream_has_a_gradient_in_fp32_too() -> None:
    cast = layer(**PLAIN).autocast
    assert cast is not None
    assert cast.working == Saved(tensor=INNER, replicated=WIDTH, sequence=2 * WIDTH)


def rows(block: Block) -> Busy:
    """The moment at which experts begin."""
    return block.busy[-1]


def test_experts_begin_with_three_tensors_of_their_rows() -> None:
    short = rows(layer(experts=EXPERTS))
    assert short == Busy(working=Saved(sequence=2 * WIDTH, expert=3 * 2 * WIDTH), meanwhile=0.0)
    weighed = rows(layer(experts=replace(EXPERTS, fp32_weights=True)))
    assert weighed.working == short.working + Saved(expert=3 * 2 * WIDTH)
    # nothing is short under autocast, which knows no grouped product
    cast = layer(experts=EXPERTS).autocast
    assert cast is not None
    assert cast.busy[-1].working.expert == weighed.working.expert


def test_shared_experts_have_run_by_then() -> None:
    block = layer(experts=replace(EXPERTS, shared_ffn=5))
    plain = rows(layer(experts=EXPERTS))
    # the whole stream is gathered for them; of a gate, its activation, what is beside it and their product
    # nothing is left
    stream = Saved(sequence=-2 * WIDTH, replicated=2 * WIDTH)
    assert rows(block).working == plain.working + stream + Saved(tensor=-4 * 2 * 5 * T)
    assert rows(block).meanwhile == 3 * 8 * 5 / block.parameter_count
    # with a gate they run before the others, and keep all until those are through
    gated = rows(layer(experts=replace(EXPERTS, shared_ffn=5, shared_gate=True)))
    assert (gated.working, gated.meanwhile) == (plain.working + stream, 0)


def test_other_experts_have_no_such_moment() -> None:
    assert not layer(experts=replace(EXPERTS, every_token=True)).busy
    assert not layer(Kernels.COMPILED, experts=EXPERTS).busy


def test_at_scores_the_feed_forwards_gradients_are_there() -> None:
    block = layer(scores=Scores.PLAIN)
    last, scores = block.busy
    assert last == Busy(working=block.working, meanwhile=8 * SMALL.ffn / block.parameter_count)
    # three products of the feed-forward, and attention's last
    assert scores.meanwhile == (3 * 8 * SMALL.ffn + 12 * 8) / block.parameter_count


def test_a_second_norm_beside_the_first_shares_its_input() -> None:
    plain, parallel = (layer(**PLAIN, parallel=side).activations.none for side in (False, True))
    assert plain == parallel + Saved(sequence=WIDTH)
    fused = [layer(Kernels.FUSED, **PLAIN, parallel=side).activations.none for side in (False, True)]
    assert fused[0] == fused[1]


def test_phi3s_fused_products_are_stretched_where_libraries_run() -> None:
    fused: dict[str, Any] = {"fused_qkv": True, "values_in_projection": True, "gated": True, "positions": 0}
    own = layer(**fused)
    a = replace(SMALL, **fused)
    gated = 2 * a.hidden * a.ffn
    qkv = a.hidden * (a.heads + 2 * a.kv_heads) * a.head_dim
    assert (own.stretched, own.regathered, own.unshared) == (qkv + gated, gated, 2 * gated)
    # GPT-NeoX's are divided head by head as they are stored
    assert layer(**fused | {"gated": False}).stretched == 0
