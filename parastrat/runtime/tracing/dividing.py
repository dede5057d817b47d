"""A division followed through a watched step: what is divided of its storages and operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from parastrat.model import Split
from parastrat.runtime.tracing.division import Division, of_all
from parastrat.runtime.tracing.operators import PRODUCTS, Call
from parastrat.runtime.tracing.recorded import Allocation, Segment


class Dividing:
    """Tells what divides each storage as it is made, and settles at the end what only the whole shows."""

    def __init__(self, division: Division) -> None:
        self._division = division
        #: samples times positions of what the blocks pass on
        self._positions = 0

    @property
    def divides(self) -> bool:
        """Whether anything is divided."""
        return bool(self._division.roles)

    @property
    def positions(self) -> int:
        """Samples times positions of what is divided along these between the blocks; 0: nothing is."""
        return self._positions if self._division.sequence else 0

    def of_parameter(self, name: str) -> Split:
        """Return what divides a parameter."""
        return self._division.of_parameter(name)

    def look_at(self, inputs: Iterable[torch.Tensor]) -> None:
        """Learn from a block's inputs how many positions a micro-batch has."""
        if not self._positions:
            self._positions = next((prod(leaf.shape[:2]) for leaf in inputs if leaf.ndim == 3), 0)

    def way(
        self, func: Any, held: Sequence[Allocation], weights: Sequence[str], *, backward: bool
    ) -> Split:
        """Return what divides the result of an operator that reads these storages and parameters."""
        ways = [made.way for made in held]
        if backward:
            return self._division.of_gradient(ways, weights)
        return self._division.of_result(ways, weights, product=func in PRODUCTS)

    def streams(self, elements: int, segment: Segment) -> bool:
        """Return whether a tensor of a segment that nothing else divides is divided along the sequence."""
        return self._division.sequence and bool(segment.block) and self._is_of_positions(elements)

    def divided(
        self,
        call: Call,
        segment: Segment,
        held: Sequence[Allocation],
        weights: Sequence[str],
        made: Sequence[Allocation],
    ) -> Call:
        """Return a call with what is divided of it, and note what ranks exchange for it."""
        side = self._division.side_of(weights) if call.n else ""
        if call.n and self._division.adds_up(weights):
            segment.added_up.append(sum(each.bytes for each in made))
        if call.n and self._division.gathers(weights):
            regions = {self._division.regions.get(name, name) for name in weights}
            for each in held:
                each.gathered = True
                each.regions |= regions
                if each.way is Split.SEQUENCE:
                    each.way = Split.REPLICATED
        ways = {each.way for each in (*held, *made)}
        way = of_all(ways)
        if way is Split.REPLICATED:
            whole = Split.SEQUENCE if Split.SEQUENCE in ways and not call.n else Split.REPLICATED
            way = Split.TENSOR if side else whole
        return replace(call, split=way, split_side=side)

    def settle(self, segments: Sequence[Segment], events: Sequence[tuple[int, int, Allocation]]) -> None:
        """Gather logits that a model's own loss reads; let ends hold shares of positions where they can."""
        for segment in segments:
            # of a block that did not run nobody read the input
            alike = [] if segment.twin is None else segments[segment.twin].inputs
            for own, read in zip(segment.inputs, alike, strict=False):
                own.way, own.gathered, own.regions = read.way, read.gathered, read.regions
        reached = self._reached(segments)
        for made in {made: None for _, _, made in events}:
            if made.way is Split.VOCABULARY and not self._division.logits:
                made.way, made.gathered = Split.REPLICATED, True
            home = segments[made.created]
            if made.way is Split.VOCABULARY and not made.gradient:
                home.of_loss = max(made.bytes, home.of_loss)
            whole = made.way is Split.REPLICATED and not made.gathered and not made.constant
            if whole and made.created in reached and self._is_of_positions(made.elements):
                made.way = Split.SEQUENCE

    def _reached(self, segments: Sequence[Segment]) -> set[int]:
        """Return which ends of the chain work on shares of the positions."""
        last = len(segments) - 1
        reached = {0} if self._division.starts_behind(segments[0].parameters) else set()
        return reached | ({last} if self._division.ends_with(segments[last].parameters) else set())

    def _is_of_positions(self, elements: int) -> bool:
        return self._positions > 0 and elements % self._positions == 0
