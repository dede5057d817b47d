"""What attention gathers and makes over a sequence's ranks, counted by hand on a small layer.

Width 8, four heads of 2 and two of keys, 10 tokens, 2 bytes an element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import SMALL

from parastrat.model import Family
from parastrat.moments import Attends
from parastrat.saved import Saved
from parastrat.sources.architecture import LatentAttention, Scores
from parastrat.sources.transformer import transformer
from parastrat.stack import Kernels
from parastrat.workload import Precision

T = 10
GQA = {"hidden": 8, "heads": 4, "kv_heads": 2, "head_dim": 2}
Q, K = 2 * T * 8, 2 * T * 4


def attends(kernels: Kernels = Kernels.EAGER, **changes: Any) -> Attends | None:
    a = replace(SMALL, **(GQA | changes))
    return transformer(a, T, Precision.BF16_MIXED, kernels, "small").blocks[1].attends


def found(**changes: Any) -> Attends:
    attending = attends(**changes)
    assert attending is not None
    return attending


def heads(size: float) -> Saved:
    return Saved(tensor=size)


def test_of_two_stretches_the_later_reads_all_keys() -> None:
    own = found()
    assert own.gathered == heads(2 * K)
    assert own.joined == heads(Q)
    # gathered, their gradients, and one of them padded; then what is padded of both, and of queries
    assert own.moments == ((heads(5 * K), heads(Q / 2)), (heads(4 * K), heads(1.5 * Q + K)))


def test_what_sees_all_keys_has_one_stretch() -> None:
    own = found(family=Family.ENCODER)
    assert own.moments == ((heads(4 * K), heads(Q)),)
    assert own.joined == Saved()


def test_behind_a_mask_keys_are_gathered_for_every_query() -> None:
    own = found(masked=True)
    assert own.gathered == heads(2 * Q)
    assert own.moments == ((heads(4 * Q), heads(Q)),)


def test_keys_of_a_latent_are_wider_than_its_values() -> None:
    latent = LatentAttention(q_rank=4, kv_rank=4, nope_dim=2, rope_dim=1, v_dim=2)
    own = found(latent=latent)
    keys, values = 2 * T * 4 * 3, 2 * T * 4 * 2
    assert own.gathered == heads(keys + values)
    assert own.joined == heads(values)
    assert own.moments[0] == (heads(3 * keys + 2 * values), heads(keys / 2))


def test_projections_before_attention_have_their_gradients_later() -> None:
    projections, rest = 8 * (8 + 2 * 4), 8 * 8
    every = sum(
        group.trainable
        for group in transformer(replace(SMALL, **GQA), T, Precision.BF16_MIXED, Kernels.EAGER, "small")
        .blocks[1]
        .parameters
    )
    # and those of norms
    later = (1 - found().meanwhile) * every
    assert projections <= later <= projections + rest


@pytest.mark.parametrize(
    ("kernels", "changes"),
    [(Kernels.FUSED, {}), (Kernels.COMPILED, {}), (Kernels.EAGER, {"scores": Scores.PLAIN})],
)
def test_nothing_is_known_of_other_kernels(kernels: Kernels, changes: dict[str, Any]) -> None:
    assert attends(kernels, **changes) is None
