"""Which dimension of an activation is divided, and how shapes carry it from operator to operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

#: the dimension of what is whole, and whose gradient is a share on each rank
WHOLE = -1


class NotFollowedError(Exception):
    """A divided tensor meets what cannot be divided; the message is the reason."""


class SegmentsNeededError(Exception):
    """A fused output is taken apart: its features must be divided stretch by stretch."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        super().__init__(f"to be divided in {len(shares)} stretches")
        #: share of all features that each stretch has
        self.shares = shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """A dimension that the tensor-parallel ranks divide."""

    dim: int
    #: the layers whose output features it was
    sources: frozenset[str]
    #: equal stretches of the dimension that are each divided
    outer: int = 1
    #: shares of unequal stretches that are each divided
    shares: tuple[float, ...] = ()
    #: a norm over all ranks' features gave it, and nothing took them apart since
    normed: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether every rank has all of it, and reads it in part."""
        return self.dim == WHOLE

    def moved(self, dim: int) -> Tag:
        return replace(self, dim=dim)


def viewed(tag: Tag, before: Sequence[int], after: Sequence[int], degree: int) -> Tag:
    """Return the tag behind a view or reshape.

    Raises:
        NotFollowedError: where the divided dimension disappears in another one.
        SegmentsNeededError: where it is taken apart into fewer pieces than ranks.
    """
    first, last, start, end = _block(tag.dim, before, after)
    if after[start:end] == before[first:last]:
        return tag.moved(start + tag.dim - first)
    _plain(tag)
    outer = math.prod(before[first : tag.dim]) * tag.outer
    inside = math.prod(before[first:last]) // outer
    dim = start
    passed = 1
    while dim < end and passed < outer and outer % (passed * after[dim]) == 0:
        passed *= after[dim]
        dim += 1
    while dim < end - 1 and after[dim] == 1:
        dim += 1
    if passed < outer:
        rest = outer // passed
        if dim < end and after[dim] % rest == 0 and (after[dim] // rest) % degree == 0:
            return replace(tag, dim=dim, outer=rest)
        raise NotFollowedError("its heads are merged with another dimension")
    if dim == end:
        raise NotFollowedError("its features are merged with another dimension")
    if after[dim] % degree:
        if passed == 1 and inside % after[dim] == 0:
            raise SegmentsNeededError((1 / after[dim],) * after[dim])
        raise NotFollowedError(f"{after[dim]} pieces do not divide by tp {degree}")
    return replace(tag, dim=dim, outer=1, normed=False)


def _plain(tag: Tag) -> None:
    if tag.shares:
        raise NotFollowedError("its fused output is reshaped before it is taken apart")


def _block(dim: int, before: Sequence[int], after: Sequence[int]) -> tuple[int, int, int, int]:
    """Return the smallest ranges of dimensions around ``dim`` that hold the same elements."""
    first = start = i = j = 0
    left = right = 1
    while i < len(before) or j < len(after):
        if (left <= right and i < len(before)) or j == len(after):
            left *= before[i]
            i += 1
        else:
            right *= after[j]
            j += 1
        if left == right and j > start and i > first:
            if dim < i:
                return first, i, start, j
            first, start, left, right = i, j, 1, 1
    return first, len(before), start, len(after)


def divided_pieces(tag: Tag, sizes: Sequence[int]) -> Tag:
    """Return the tag of the pieces into which the divided dimension is split.

    Raises:
        SegmentsNeededError: if it is not divided piece by piece yet.
    """
    total = sum(sizes)
    shares = tuple(size / total for size in sizes)
    if len(set(sizes)) == 1 and tag.outer == len(sizes):
        return replace(tag, outer=1)
    if tag.shares and tag.shares == shares:
        return replace(tag, shares=())
    if tag.outer == 1 and not tag.shares:
        raise SegmentsNeededError(shares)
    raise NotFollowedError("it is taken apart in a way that cannot be divided")
