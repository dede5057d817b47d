"""The kinds of a model's blocks in the variants in which plans have them, as columns beside plans' own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.memory.kinds import Kind, Shared, Way, is_tied, kind_of, parameters_of, shared_of
from parastrat.plan import Recompute
from parastrat.ranks import ParameterTotals, block_kinds
from parastrat.ranks.chains import DIVIDED
from parastrat.ranks.pipelines import pipelines_of
from parastrat.remembered import remembered
from parastrat.saved import Saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.model import ModelSpec
    from parastrat.ranks.pipelines import Pipelines
    from parastrat.stack import Stack


@dataclass(frozen=True, kw_only=True)
class KindsOf:
    """What the kinds of a model's blocks hold: in each variant one by one, and as columns of all kinds."""

    each: tuple[tuple[Kind, ...], ...]
    #: of the model, whose ranks have these kinds
    pipelines: Pipelines
    #: of all kinds together, of the model's output
    output: Shared | None
    #: whether any has a loss that may be in parallel
    losses: bool
    #: whether any stands before attention masks
    masks: bool
    #: whether any holds most at several moments
    busy: bool
    #: what was asked for beside each other, and whether it is the same in all variants
    told: dict[str, tuple[Any, bool]] = field(default_factory=dict)

    @cached_property
    def columns(self) -> tuple[Kind, ...]:
        """The columns of all kinds in each variant."""
        most = max(len(kind.moments) for variant in self.each for kind in variant)
        found, made = list[Any](), dict[tuple[int, ...], Any]()
        for place, variant in enumerate(self.each):
            same = self.each.index(variant)
            even = [_with_moments(kind, most) for kind in variant]
            found.append(found[same] if same < place else _KindsTogether(even, made))
        return tuple(found)

    def beside(self, name: str, variant: Any) -> Any:
        """Return what is told by one name beside plans, each in its variant: not all of it is read so."""
        if name not in self.told:
            first, *others = several = [getattr(kinds, name) for kinds in self.columns]
            same = all(_same(first, each) for each in others)
            self.told[name] = first if same else _beside(several), same
        found, same = self.told[name]
        return found if same else _taken(found, variant)

    @cached_property
    def _kept(self) -> Shared:
        """What all kinds keep, policy after policy of each variant beside each other."""
        every: Shared = _beside([policy for variant in self.columns for policy in variant.kept])
        return every

    def kept(self, variant: Any, policy: Any) -> Shared:
        """Return what all kinds keep under some plans' policies, in their variants."""
        if type(variant) is not np.ndarray and type(policy) is not np.ndarray:
            own: Shared = self.columns[variant].kept[policy]
            return own
        taken: Shared = _taken(self._kept, variant * len(Recompute) + policy)
        return taken


#: without and with a pipeline, each of these without and with autocast
_VARIANTS = tuple((autocast, piped) for piped in (False, True) for autocast in (False, True))


@remembered
def _known(model: ModelSpec) -> dict[tuple[bool, bool], KindsOf]:
    """Return the kinds of a model as they were asked for."""
    del model
    return {}


def kinds_held(model: ModelSpec, stack: Stack) -> KindsOf:
    """Return what kinds of block hold.

    FSDP2 casts weights as it gathers them, else autocast casts what products read. Tensors cross whole
    between stages of our pipelines, so that only inside of units they are divided along the sequence; and
    nowhere in a model with dropout, which would have to differ along it. Megatron's stages send shares, and
    it draws for each; so do torchtitan's.
    """
    fused = stack.kernels.fused
    known, key = _known(model), (bool(model.drops) and not fused, stack.crosses_divided or fused)
    if key not in known:
        known[key] = _made(model, *key)
    return known[key]


def _made(model: ModelSpec, whole: bool, divided: bool) -> KindsOf:
    blocks = block_kinds(model).blocks
    known = any(block.meanwhile for block in blocks)

    parameters = [parameters_of(block) for block in blocks]

    @cache
    def made(place: int, way: Way) -> Kind:
        return kind_of(blocks[place], way, model, parameters[place])

    # mostly a pipeline changes nothing: such kinds are made once
    each = tuple(
        tuple(
            made(place, Way(autocast, whole or (piped and not divided and not block.unit), known))
            for place, block in enumerate(blocks)
        )
        for autocast, piped in _VARIANTS
    )
    tied = [is_tied(block, blocks[place + 1 :]) for place, block in enumerate(blocks)]
    each = tuple(
        tuple(
            replace(kind, tied=True, before=kinds[place + 1].unit) if tied[place] else kind
            for place, kind in enumerate(kinds)
        )
        for kinds in each
    )
    several = [kind.moments for kinds in each for kind in kinds]
    return KindsOf(
        each=each,
        pipelines=pipelines_of(model),
        output=shared_of(sum((block.output for block in blocks), Saved())),
        losses=any(block.loss_parallel_bytes for block in blocks),
        masks=any(kind.masks is not None for kinds in each for kind in kinds),
        busy=any(len(moments) > 1 or moments[0].sooner for moments in several),
    )


def _with_moments(kind: Kind, most: int) -> Kind:
    """Return a kind with so many moments: its last one several times where it has fewer."""
    if len(kind.moments) == most:
        return kind
    return replace(kind, moments=(kind.moments + kind.moments[-1:] * most)[:most])


class _KindsTogether:
    """Several kinds as one whose numbers are columns, which are made as they are read; as ``Kind``."""

    def __init__(self, several: Sequence[Kind], made: dict[tuple[int, ...], Any]) -> None:
        self.__dict__.update(_several=several, _made=made)

    def __getattr__(self, name: str) -> Any:
        values = [getattr(each, name) for each in self._several]
        # variants mostly have parts in common, which are told by identity; the values stay, so that no
        # others have it
        key = tuple(map(id, values))
        if key not in self._made:
            self._made[key] = values, _together(values)
        column = self.__dict__[name] = self._made[key][1]
        return column


def _together(several: Sequence[Any]) -> Any:
    """Return values of several kinds as one whose numbers are columns; 0 or None where none has any."""
    first = next((each for each in several if each is not None), None)
    if first is None:
        return None
    if isinstance(first, ParameterTotals):
        totals = ([getattr(each, name) for each in several] for name in DIVIDED)
        return ParameterTotals(*(_together(own) if any(own) else 0 for own in totals))
    if not isinstance(first, tuple):
        kind = bool if all(type(each) is bool for each in several) else float
        return np.array([each or 0 for each in several], dtype=kind)[:, None]
    blank = (None,) * len(first)
    parts = [_together(own) for own in zip(*(each or blank for each in several), strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def _same(one: Any, other: Any) -> bool:
    """Return whether two variants have the same columns."""
    if one is other:
        return True
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if type(one) is np.ndarray and type(other) is np.ndarray:
        return np.array_equal(one, other)
    return isinstance(one, ParameterTotals)


def _beside(several: Sequence[Any]) -> Any:
    """Return columns of several variants beside each other."""
    first = next((each for each in several if each is not None), None)
    if first is None or isinstance(first, ParameterTotals):
        return first
    if not isinstance(first, tuple):
        blank = np.zeros_like(first)
        return np.concatenate([blank if each is None else each for each in several], axis=1)
    blank = (None,) * len(first)
    parts = [_beside(own) for own in zip(*(each or blank for each in several), strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def under(kinds: KindsOf, variant: Any) -> Kind:
    """Return the columns of all kinds beside plans, each in its variant."""
    found: Any = kinds.columns[variant] if type(variant) is not np.ndarray else _Chosen(kinds, variant)
    own: Kind = found
    return own


class _Chosen:
    """Columns of all kinds beside plans, which are taken as they are read; as ``Kind``."""

    def __init__(self, kinds: KindsOf, variant: Any) -> None:
        self.__dict__.update(_kinds=kinds, _variant=variant)

    def __getattr__(self, name: str) -> Any:
        column = self._kinds.beside(name, self._variant)
        self.__dict__[name] = column
        return column


def _taken(value: Any, variant: Any) -> Any:
    if value is None or isinstance(value, ParameterTotals):
        return value
    if isinstance(value, tuple):
        parts = [_taken(part, variant) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if variant.ndim <= 2:
        return value.take(variant.ravel() if variant.ndim == 2 else variant, axis=1)
    # policies before kinds before plans
    return value.take(variant[:, 0], axis=1).swapaxes(0, 1)
