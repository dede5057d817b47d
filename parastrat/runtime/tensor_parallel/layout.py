"""What tensor parallelism does to each module: values that the plans give and the wrapping follows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias


class Role(StrEnum):
    """What becomes of one module."""

    #: each rank computes its share of the output features; the input is whole
    COLUMN = "column"
    #: the same, and the ranks gather the shares
    COLUMN_GATHERED = "column, gathered"
    #: each rank has its share of the input features; the ranks add up their outputs
    ROW = "row"
    #: the same for a whole input, of which each rank takes its share
    ROW_OF_WHOLE = "row of a whole input"
    #: each rank looks up its share of the rows; the ranks add up what they found
    EMBEDDING = "embedding"
    #: no layer: each rank has its share of the parameters that stand beside layers, as one for each head
    BESIDE = "beside layers"
    #: each rank has its share of the features, which are normalised by those of all ranks
    NORM = "norm over all ranks' features"
    #: a whole layer, of whose output each rank reads all for its share: its gradients are added up
    LATENT = "whole, for shares of the heads"
    #: whole weights that see only a share of the data: their gradients are added up
    SUMMED = "summed"


#: an operator by the name of its node in autograd, with the dimensions that it works along; None: it does
#: not say
Step: TypeAlias = "tuple[str, tuple[int, ...] | None]"

#: the flags that a call is given: where, and what
Given: TypeAlias = "tuple[tuple[str, str], ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One module's role."""

    role: Role
    #: sizes of consecutive stretches of output features that are divided one by one (fused q, k and v);
    #: empty: the features are divided as a whole
    segments: tuple[int, ...] = ()
    #: of a column: it reads what whole layers of its group gave, whose gradient is a share as it is
    inner: bool = False
    #: of a column: it has so many heads, fewer than there are ranks, each of which computes one of them
    copied: int = 0


class Inside(StrEnum):
    """What the code between a group's columns and rows works on."""

    #: plain tensors with this rank's share
    LOCAL = "local tensors"
    #: the same, and the module's own numbers of heads and features are this rank's too
    SCALED = "local tensors, with the modules' sizes divided"
    #: DTensors, which know the sizes of the whole
    DTENSORS = "DTensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Modules that are only right together, such as the four projections of an attention."""

    #: the place in the module that they share, with ``*`` for the number of a layer
    kind: str
    #: by module name
    parts: Mapping[str, Part]
    inside: Inside = Inside.LOCAL
    #: attributes that hold sizes of what is divided, by module name; ``config.NAME``: those of its config
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: attributes that hold how many heads of queries read one of keys, where several ranks have that one
    readers_of_one: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: flags that modules of these kinds may be given: the forward chooses its way by values, and was
    #: followed with these alone
    given: Mapping[str, tuple[Given, ...]] = field(default_factory=dict)

    @property
    def places(self) -> list[str]:
        """Return where its parameters are: in modules inside of their home, or in the home itself."""
        return [f"{name}." if part.role is Role.BESIDE else name for name, part in self.parts.items()]

    @property
    def normalises(self) -> bool:
        """Whether something of it is normalised over all ranks."""
        return any(part.role is Role.NORM for part in self.parts.values())

    @property
    def readers(self) -> tuple[str, ...]:
        """Its modules that begin a divided region."""
        begin = (Role.COLUMN, Role.LATENT)
        return tuple(name for name, part in self.parts.items() if part.role in begin and not part.inner)

    @property
    def rows(self) -> tuple[str, ...]:
        """Its modules that end a divided region."""
        return tuple(name for name, part in self.parts.items() if part.role is Role.ROW)

    @property
    def gathers(self) -> bool:
        """Whether what its columns give is gathered before its rows: what lies between is not divided."""
        roles = {part.role for part in self.parts.values()}
        return {Role.COLUMN_GATHERED, Role.ROW_OF_WHOLE} <= roles

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its modules."""
        return tuple(dict.fromkeys(map(kind_of, self.parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """A place that stays replicated."""

    kind: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How far beyond the blocks activations are divided along the sequence; names of modules."""

    #: each rank keeps its share of the positions of this one's output; empty: divided at the first block
    embedding: str = ""
    #: positions are gathered before this one; empty: behind the last block
    head: str = ""
    #: what works on a share of the positions between the last block and the head
    between: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What becomes of a whole model."""

    groups: tuple[Group, ...]
    left: tuple[Left, ...] = ()
    #: activations between the groups inside of blocks are divided along the sequence
    sequence: bool = False
    #: with ``sequence`` only
    ends: Ends = field(default_factory=Ends)
    #: ``forward_backward`` computes cross entropy from shares of the logits
    loss: bool = False
    #: the steps of the forward that proofs took on what is divided, by where that is; they are no part of
    #: what becomes of a model
    steps: Mapping[str, frozenset[Step]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def parts(self) -> dict[str, Part]:
        return {name: part for group in self.groups for name, part in group.parts.items()}

    def without(self, names: Collection[str]) -> Layout:
        """Return the layout without a role for some modules."""
        groups = (
            replace(each, parts={name: part for name, part in each.parts.items() if name not in names})
            for each in self.groups
        )
        return replace(self, groups=tuple(groups))

    def also(self, proven: Mapping[str, Collection[Step]]) -> Layout:
        """Return the layout with more steps of the forward that a proof took."""
        places = (*self.steps, *proven)
        steps = {where: self.steps.get(where, frozenset()).union(proven.get(where, ())) for where in places}
        return replace(self, steps=steps)


def divided_between(group: Group) -> frozenset[str]:
    """Return the group's modules between which each rank holds a share of the activations."""
    inside = (Role.COLUMN, Role.ROW)
    return frozenset(name for name, part in group.parts.items() if part.role in inside)


def heads(layout: Layout, blocks: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules outside of the blocks whose output is gathered: what predicts a vocabulary."""
    inside = tuple(f"{name}." for name in blocks)
    gathered = (name for name, part in layout.parts.items() if part.role is Role.COLUMN_GATHERED)
    return tuple(name for name in gathered if not name.startswith(inside))


def kind_of(name: str) -> str:
    """Return a module's name with ``*`` for the numbers of layers."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
