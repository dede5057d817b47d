"""What a pipeline rank holds as it begins its first backward: of ``flights`` what is told sooner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parastrat.ranks.flights import STEPS, behind_last


def begun(
    shape: tuple[int, int], rank: int, *, is_bent: bool, way: tuple[bool, bool]
) -> tuple[list[int], int]:
    """Return of each virtual stage of a rank what is alive as it begins its first backward, and which runs.

    That is the first moment of ``looped`` and of ``v_shaped``: nothing ran backward before.

    Args:
        shape: the ranks of the pipeline, and the virtual stages of each.
        rank: which of them.
        is_bent: the chain runs down the ranks and up again.
        way: one of ``WAYS``.
    """
    (pp, chunks), (few, split) = shape, way
    if is_bent:
        return [pp if few and split else 2 * pp - rank, rank if split else rank + 1], 0
    ran = (chunks - 1) * pp + (1 if split else 2) * (pp - 1 - rank) + 1
    rounds, rest = divmod(min(ran, chunks * pp) if few else ran, pp * chunks)
    return [rounds * pp + min(max(rest - pp * chunk, 0), pp) for chunk in range(chunks)], chunks - 1


def first_backwards(held: Any, of_kind: Any, ranks: Sequence[int], *, is_bent: bool, split: bool) -> Any:
    """Return what is alive on ranks as each begins its first backward, but for what ran before a block.

    Of the moments of ``turns`` it is the one that is found without the others: nothing where a kind is not
    in the stage that runs then.

    Args:
        held: repeats of each block, virtual stages of a rank before ranks before blocks.
        of_kind: where a block, in the first axis, is of a kind.
        ranks: which are looked at.
        is_bent: the chain runs down the ranks and up again.
        split: backward is split.

    Returns:
        Repeats of each kind; kinds that run before these before ``STEPS`` before ranks.
    """
    shape = held.shape[1], held.shape[0]
    at = [(few, rank) for few in STEPS for rank in ranks]
    alive, running = zip(
        *(begun(shape, rank, is_bent=is_bent, way=(few, split)) for few, rank in at), strict=True
    )
    own = held[:, [rank for _, rank in at]]
    has, behind = behind_last(own[running, range(len(at))], of_kind)
    counts = np.einsum("rc,crb->rb", np.array(alive, dtype=float), own) @ of_kind
    found = np.where(has[..., None], counts[:, None] - behind, 0.0)
    return found.transpose(1, 2, 0).reshape(*found.shape[1:], len(STEPS), len(ranks))
