"""The kinds of a model's blocks in the variants in which plans have them, as columns beside plans' own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.memory.kinds import Kind, Shared, Way, held_anyway, kind_of, parameters_of, shared_of
from parastrat.plan import Recompute
from parastrat.ranks import ParameterTotals, block_kinds
from parastrat.ranks.chains import DIVIDED
from parastrat.ranks.pipelines import pipelines_of
from parastrat.remembered import remembered
from parastrat.saved import Saved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from parastrat.model import ModelSpec
    from parastrat.ranks.pipelines import Pipelines
    from parastrat.stack import Stack

_POLICIES = range(len(Recompute))
#: what is the same in all variants
_PARAMETERS = frozenset(("unit", "root", "trainable", "cast", "added", "before"))


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
    #: the tables that were asked for
    told: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def columns(self) -> tuple[Kind, ...]:
        """The columns of all kinds in each variant."""
        found: Any = tuple(_Columns(self, variant) for variant in range(len(self.each)))
        of_variants: tuple[Kind, ...] = found
        return of_variants

    def table(self, name: str) -> Any:
        """Return what is told by one name, kinds before variants; of equal variants the first alone."""
        if name not in self.told:
            # parameters are the same in all
            several = self.each[:1] if name in _PARAMETERS else self.each
            rows = [[getattr(kind, name) for kind in kinds] for kinds in several]
            self.told[name] = _for_each(
                _first_of_equal, _tables(_even(rows) if name == "moments" else rows)
            )
        return self.told[name]

    @cached_property
    def kept(self) -> Shared:
        """What all kinds keep, kinds before the policies of each variant."""
        policies = ([kind.kept[policy] for kind in kinds] for kinds in self.each for policy in _POLICIES)
        every: Shared = _tables(list(policies))
        return every

    def kept_of(self, variant: Any, policy: Any) -> Shared:
        """Return what all kinds keep under some plans' policies, in their variants."""
        taken: Shared = _for_each(partial(_taken, variant * len(_POLICIES) + policy), self.kept)
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

    parameters = [parameters_of(block, blocks[place + 1 :]) for place, block in enumerate(blocks)]

    @cache
    def anyway(place: int, whole: bool) -> dict[str, Any]:
        return {**parameters[place], **held_anyway(blocks[place], model, whole=whole)}

    @cache
    def made(place: int, way: Way) -> Kind:
        return kind_of(blocks[place], way, anyway(place, way.whole))

    # mostly a pipeline changes nothing: such kinds are made once
    each = tuple(
        tuple(
            made(place, Way(autocast, whole or (piped and not divided and not block.unit), known))
            for place, block in enumerate(blocks)
        )
        for autocast, piped in _VARIANTS
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


def _even(moments: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return kinds' moments, of each as many: of one with fewer its last one several times."""
    most = max(len(own) for kinds in moments for own in kinds)
    return [[(own + own[-1:] * most)[:most] for own in kinds] for kinds in moments]


def _tables(several: Sequence[Sequence[Any]]) -> Any:
    """Return what kinds have in several variants as tables of numbers, kinds before variants.

    0 or None where none has any.
    """
    return _tables_of([each for kinds in zip(*several, strict=True) for each in kinds], len(several))


def _tables_of(every: Sequence[Any], variants: int) -> Any:
    first = next((each for each in every if each is not None), None)
    if first is None:
        return None
    if isinstance(first, ParameterTotals):
        totals = ([getattr(each, name) for each in every] for name in DIVIDED)
        return ParameterTotals(*(_tables_of(own, variants) if any(own) else 0 for own in totals))
    if isinstance(first, tuple):
        blank = (None,) * len(first)
        parts = [_tables_of(own, variants) for own in zip(*(each or blank for each in every), strict=True)]
        return _alike(first, parts)
    kind = bool if all(type(each) is bool for each in every) else float
    return np.array([each or 0 for each in every], dtype=kind).reshape(-1, variants)


def _for_each(do: Callable[[Any], Any], value: Any) -> Any:
    """Return tables with something done to each; of parameters there is one variant alone."""
    if isinstance(value, tuple):
        return _alike(value, [_for_each(do, part) for part in value])
    return do(value) if type(value) is np.ndarray else value


def _alike(one: Any, parts: Sequence[Any]) -> Any:
    """Return parts as a tuple of the same type."""
    return type(one)(*parts) if hasattr(one, "_fields") else tuple(parts)


def _first_of_equal(table: Any) -> Any:
    first = table[:, :1]
    return first if (table == first).all() else table


def _taken(variant: Any, table: Any) -> Any:
    """Return columns of a table beside plans, each in its variant."""
    if table.shape[1] == 1:
        return table
    if type(variant) is not np.ndarray:
        return table[:, variant, None]
    if variant.ndim <= 2:
        return table.take(variant.ravel() if variant.ndim == 2 else variant, axis=1)
    # policies before kinds before plans
    return table.take(variant[:, 0], axis=1).swapaxes(0, 1)


def under(kinds: KindsOf, variant: Any) -> Kind:
    """Return the columns of all kinds beside plans, each in its variant."""
    found: Any = kinds.columns[variant] if type(variant) is not np.ndarray else _Columns(kinds, variant)
    own: Kind = found
    return own


class _Columns:
    """Several kinds as one whose numbers are columns, which are taken as they are read; as ``Kind``."""

    def __init__(self, kinds: KindsOf, variant: Any) -> None:
        self.__dict__.update(_kinds=kinds, _variant=variant)

    def __getattr__(self, name: str) -> Any:
        column = _for_each(partial(_taken, self._variant), self._kinds.table(name))
        self.__dict__[name] = column
        return column
