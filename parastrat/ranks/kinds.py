"""The kinds of a model's blocks, by which pipeline ranks count what they hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from parastrat.model import Block, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """The kinds of a model's blocks: units that are equal, repeats and name aside, are of one kind."""

    #: one block of each kind
    blocks: tuple[Block, ...]
    #: the kind of each block of the model
    of: tuple[int, ...]

    @property
    def units(self) -> tuple[bool, ...]:
        """Which kinds are FSDP units."""
        return tuple(block.unit for block in self.blocks)


def kinds_of(model: ModelSpec) -> Kinds:
    """Return the kinds of a model's blocks; a block outside units is the only one of its kind."""
    alike: list[Block] = []
    of: list[int] = []
    # a unit that stands several times in the chain is compared once
    met: dict[int, int] = {}
    for block in model.blocks:
        if id(block) not in met or not block.unit:
            plain = replace(block, name="", repeat=1)
            if not block.unit or plain not in alike:
                alike.append(plain)
            met[id(block)] = len(alike) - 1 if not block.unit else alike.index(plain)
        of.append(met[id(block)])
    return Kinds(blocks=tuple(alike), of=tuple(of))


def weights_of(blocks: tuple[Block, ...]) -> Any:
    """Return by what moments are told from one another: bytes as if nothing divided them."""
    none, full, awaited = (
        np.array([saved.total for saved in every], dtype=float)
        for every in (
            [block.activations.none for block in blocks],
            [block.activations.full for block in blocks],
            [block.awaited for block in blocks],
        )
    )
    return np.stack([np.concatenate([none, awaited]), np.concatenate([full, awaited + none - full])])
