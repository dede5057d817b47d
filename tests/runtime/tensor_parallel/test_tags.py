"""How shapes carry the divided dimension, against torch's own views of a divided tensor."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from parastrat.runtime.tensor_parallel.tags import (
    NotFollowedError,
    SegmentsNeededError,
    Tag,
    divided_pieces,
    viewed,
)


def tag(dim: int, outer: int = 1) -> Tag:
    return Tag(dim=dim, sources=frozenset({"layer"}), outer=outer)


@pytest.mark.parametrize(
    ("before", "dim", "after", "expected"),
    [
        ((2, 8, 32), 2, (2, 8, 4, 8), 2),
        ((2, 8, 4, 8), 2, (2, 8, 32), 2),
        ((2, 8, 32), 2, (16, 32), 1),
        ((2, 4, 8, 8), 1, (8, 8, 8), 0),
        ((2, 4, 8, 8), 1, (2, 4, 1, 8, 8), 1),
        ((2, 2, 3, 8, 8), 1, (2, 6, 8, 8), 1),
        ((2, 8, 32), 2, (2, 8, 1, 4, 8), 3),
    ],
)
def test_views(before: tuple[int, ...], dim: int, after: tuple[int, ...], expected: int) -> None:
    assert viewed(tag(dim), before, after, 2).dim == expected


def test_heads_merged_with_samples_come_back() -> None:
    merged = viewed(tag(1), (2, 4, 8, 8), (8, 8, 8), 2)
    assert merged.outer == 2
    assert viewed(merged, (8, 8, 8), (2, 4, 8, 8), 2) == tag(1)


def test_fused_outputs_ask_for_stretches() -> None:
    with pytest.raises(SegmentsNeededError) as caught:
        viewed(tag(2), (2, 8, 96), (2, 8, 3, 4, 8), 2)
    assert caught.value.shares == (1 / 3, 1 / 3, 1 / 3)
    assert viewed(tag(2, outer=3), (2, 8, 96), (2, 8, 3, 4, 8), 2) == tag(3)
    with pytest.raises(SegmentsNeededError):
        divided_pieces(tag(2), (32, 16, 16))
    assert divided_pieces(tag(2, outer=3), (32, 32, 32)) == tag(2)


def test_too_few_heads_are_not_followed() -> None:
    with pytest.raises((NotFollowedError, SegmentsNeededError)):
        viewed(tag(2), (2, 8, 24), (2, 8, 3, 8), 2)


@given(
    samples=st.integers(1, 3),
    heads=st.sampled_from([2, 4, 6]),
    width=st.integers(1, 3),
    stretches=st.integers(1, 3),
    data=st.data(),
)
def test_the_tagged_dimension_is_the_one_that_torch_divides(
    samples: int, heads: int, width: int, stretches: int, data: st.DataObject
) -> None:
    """The shares of the whole view are the views of the shares, wherever a tag is given."""
    whole = torch.arange(samples * stretches * heads * width).view(samples, stretches, heads, width)
    before = (samples, stretches * heads * width)
    after = data.draw(
        st.sampled_from(
            [
                (samples, stretches, heads, width),
                (samples, stretches, heads * width),
                (samples * stretches, heads, width),
                (samples * stretches * heads, width),
                (samples, stretches * heads, width),
                (samples, 1, stretches, heads, 1, width),
            ]
        )
    )
    try:
        found = viewed(tag(1, outer=stretches), before, after, 2)
    except (NotFollowedError, SegmentsNeededError):
        return
    for rank in range(2):
        own = whole.chunk(2, 2)[rank].reshape(samples, -1)
        shape = list(after)
        shape[found.dim] //= 2
        assert math.prod(shape) == own.numel()
        split = whole.reshape(after).unflatten(found.dim, (found.outer, -1))
        assert torch.equal(
            own.reshape(shape), split.chunk(2, found.dim + 1)[rank].flatten(found.dim, found.dim + 1)
        )
