"""What a forward does with what is divided, held to what was proven.

A proof takes the way that a forward takes with its sample. Later it may take another one, chosen by an
attribute, a counter, a length or a layer's number. Between columns and rows each rank has a share of the
features, between these regions one of the positions: a mean or a softmax of them would be wrong on every
rank, without an error. Where gradients are asked for, autograd has noted the operators on the way, and they
are looked at where it ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd.graph import Node

from parastrat.errors import WrapError
from parastrat.runtime.in_graph import begun_in_graph, ended_in_graph, name_of_looking
from parastrat.runtime.tensor_parallel.layout import Layout, Step
from parastrat.runtime.tensor_parallel.nodes import (
    ATTENTION,
    LEAVES,
    PRODUCT,
    dims_name,
    dims_of,
    mixing_of,
    number_of,
)

#: more ways than a forward takes
_MOST_WAYS = 256

#: along all dimensions, or the last ones
_OF_ALL = ("MeanBackward0", "SumBackward0", "MaxBackward1", "MinBackward1", "NormBackward0")
_OF_LAST = ("NativeLayerNormBackward0", "FusedRmsNormBackward0")
#: with dimensions in their order behind them as before
_KEEPING = frozenset(
    f"{name}Backward0"
    for name in (
        *("NativeLayerNorm", "FusedRmsNorm", "Softmax", "LogSoftmax", "Cumsum"),
        *("Roll", "Flip", "Slice", "Cat", "ConstantPadNd"),
    )
)
_SOFTMAX: frozenset[Step] = frozenset([("SoftmaxBackward0", (-1,)), ("SafeSoftmaxBackward0", (-1,))])
#: attention in one kernel and in several, of which the mask tells as well
_ALIKE: frozenset[Step] = frozenset([(ATTENTION, None), (PRODUCT, None), *_SOFTMAX])


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """What each rank has a share of somewhere in a forward."""

    where: str
    what: str
    #: the dimension that is divided
    dim: int
    #: a plan without it
    without: str


def features_of(kind: str) -> Divided:
    """Return what is divided between the columns and rows of groups of a kind."""
    without = "plan without tp: parastrat recommend --tp 1"
    return Divided(
        where=f"between the columns and rows of {kind}", what="features", dim=-1, without=without
    )


def norms_of(kind: str) -> Divided:
    """Return what is divided inside of the norms of groups of a kind."""
    return replace(features_of(kind), where=f"inside of the norms of {kind}")


@dataclass(slots=True)
class Passage:
    """What lies between places where a dimension is divided and those where it no longer is.

    Args:
        of: what is divided.
        proven: the steps that proofs took.
        noted: where the steps are noted instead, while they are proven.
    """

    of: Divided
    proven: frozenset[Step] = frozenset()
    noted: set[Step] | None = None
    #: by which a compiler's graph names it, as it does all that are equal; None: it is not to be in one
    name: str | None = None
    #: the places that were passed, and the nodes of what is divided there: names by numbers
    _begun: set[int] = field(default_factory=set)
    _nodes: dict[int, str] = field(default_factory=dict)
    #: of what is divided
    _ndim: int = 0
    _places: int = 0
    _told: set[Step] = field(default_factory=set)
    #: ways from the ends back that were looked at, and found right
    _passed: set[tuple[Any, ...]] = field(default_factory=set)

    def begin(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return what is called with a tensor as it is divided, at a place of its own, and passes it on."""
        own = self._places = self._places + 1

        def begun(output: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_compiling():
                return output if self.name is None else begun_in_graph(output, self.name)
            if own in self._begun:  # the next forward, whether or not the one before came to an end
                self.forget()
            self._begun.add(own)
            self.begun(output)
            return output

        return begun

    def begun(self, output: torch.Tensor) -> None:
        """Note a tensor as it is divided."""
        # what is written to a view becomes another node, behind that of what it is a view of
        nodes = [] if output.grad_fn is None else [output.grad_fn]
        if nodes and output._base is not None and output._base.grad_fn is not None:  # noqa: SLF001
            nodes.append(output._base.grad_fn)  # noqa: SLF001
        self._nodes.update((number_of(node), node.name()) for node in nodes)
        self._ndim = output.ndim

    def forget(self) -> None:
        """Let go of the tensors that were noted."""
        self._begun.clear()
        self._nodes.clear()

    def end(self, given: torch.Tensor) -> torch.Tensor:
        """Be called with a tensor that is divided to this place, and pass it on.

        Raises:
            WrapError: if an operator works along the dimension of which each rank has a share.
        """
        if torch.compiler.is_compiling():
            return given if self.name is None else ended_in_graph(given, self.name)
        self.ended(given)
        return given

    def ended(self, given: torch.Tensor) -> None:
        """Look at what led to a tensor, as ``end`` does."""
        if not self._nodes or given.grad_fn is None:
            return
        if self.noted is not None:
            self.noted.update(step for step, _ in self._steps(given.grad_fn))
            return
        # most forwards take the way of the one before: to tell it takes half as long as to judge it
        way = self._way_to(given.grad_fn)
        if way in self._passed:
            return
        for step, in_place in self._steps(given.grad_fn):
            if step not in self.proven and step not in self._told:
                self._judge(step, in_place=in_place)
        if len(self._passed) == _MOST_WAYS:
            self._passed.clear()
        self._passed.add(way)

    def _judge(self, step: Step, *, in_place: bool) -> None:
        """Refuse or warn of a step that was not proven.

        Args:
            step: what it is.
            in_place: whether the dimension that is divided still is where it was.
        """
        (name, along), ndim = step, self._ndim
        if name in _OF_LAST:
            along = (-1,)
        elif name in _OF_ALL:
            along = tuple(range(ndim))
        where, what = self.of.where, self.of.what
        mixed = {dim % ndim for dim in along} if in_place and along is not None else None
        if mixed is not None and self.of.dim % ndim in mixed:
            raise WrapError(
                f"{where} the forward now works along the {what} ({name}), of which each tp rank has a "
                "share: it did not when tp was proven",
                hint="set what chooses its way before auto_parallelize, pass sample_inputs= that take it, "
                f"or {self.of.without}",
            )
        self._told.add(step)
        if mixed is None:
            warnings.warn(
                f"{where} the forward now does what it did not when tp was proven ({name}): each tp rank "
                f"has a share of the {what} there. Pass sample_inputs= to auto_parallelize that take this "
                "way, or set what chooses it before, to have it proven",
                stacklevel=2,
            )

    def _way_to(self, end: Node) -> tuple[Any, ...]:
        """Return what is equal for ways to a node of which ``_steps`` tells the same."""
        begun, first = self._nodes, min(self._nodes)
        places, left = {end: 0}, [(end, number_of(end))]
        way: list[Any] = [self._ndim]
        while left:
            node, number = left.pop()
            kind = type(node)
            if number in begun:
                way += (kind, begun[number] == node.name())
                continue
            name = dims_name(kind)
            way += (kind, name and getattr(node, name))
            for source, _ in node.next_functions:
                place = None if source is None else places.get(source)
                if place is None and source is not None:
                    own = number_of(source)
                    if first <= own < LEAVES:
                        places[source] = place = len(places)
                        left.append((source, own))
                way.append(place)
        return tuple(way)

    def _steps(self, end: Node) -> Iterator[tuple[Step, bool]]:
        """Yield what may mix elements on the way to a node, and if the dimension is where it was before."""
        # of the nodes that read what is divided
        in_place: dict[Node, bool] = {}
        numbers = self._back_from(end)
        for node in sorted(numbers, key=numbers.__getitem__):
            name = node.name()
            if self._nodes.get(numbers[node]) == name:
                in_place[node] = True
                continue
            before = [in_place[source] for source, _ in node.next_functions if source in in_place]
            if not before:
                continue
            mixing = mixing_of(name)
            in_place[node] = (mixing is None or mixing in _KEEPING) and all(before)
            if mixing:
                yield (mixing, dims_of(node)), all(before)

    def _back_from(self, end: Node) -> dict[Node, int]:
        """Return a node and those that it hangs on, back to where all began, by numbers."""
        first, found, left = min(self._nodes), {end: number_of(end)}, [end]
        while left:
            node = left.pop()
            if found[node] in self._nodes:
                continue
            for source, _ in node.next_functions:
                if source is not None and source not in found:
                    number = number_of(source)
                    if first <= number < LEAVES:
                        found[source] = number
                        left.append(source)
        return found


def passage(of: Divided, layout: Layout, noted: dict[str, set[Step]] | None) -> Passage | None:
    """Return what looks at the steps somewhere, to note or to hold them; None where nothing is known."""
    if noted is not None:
        return Passage(of, noted=noted.setdefault(of.where, set()))
    if of.where not in layout.steps:
        return None
    proven = allowed(layout.steps[of.where])
    return Passage(of, proven, name=name_of_looking((of, proven), lambda: Passage(of, proven)))


def allowed(proven: Collection[Step]) -> frozenset[Step]:
    """Return the steps that proofs took, with those that other kernels have in their place."""
    in_one = (ATTENTION, None) in proven
    in_several = (PRODUCT, None) in proven and not _SOFTMAX.isdisjoint(proven)
    return frozenset(proven) | (_ALIKE if in_one or in_several else frozenset())
