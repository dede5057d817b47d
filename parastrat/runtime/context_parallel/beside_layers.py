"""Positions divided beside layers: what was proven of each alone is proven of both together.

Positions are divided first: to tensor parallelism a rank's share is a whole sequence, which it may divide
further between the first block and the last.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from parastrat.errors import WrapError
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.communication.agreement import together
from parastrat.runtime.context_parallel.choice import blocks_of, divide, stream_of
from parastrat.runtime.in_step import in_step
from parastrat.runtime.tensor_parallel.bench import Bench, bench_of
from parastrat.runtime.tensor_parallel.choice import on_copy
from parastrat.runtime.tensor_parallel.computed import Results, Task
from parastrat.runtime.tensor_parallel.layout import Left, heads
from parastrat.runtime.tensor_parallel.loss import task_of_loss, unproven
from parastrat.runtime.tensor_parallel.proof import Trial, Verdict, judged
from parastrat.runtime.tensor_parallel.sequence import NoStreamError, check_shares_differ, unstreamed
from parastrat.runtime.tensor_parallel.wrap import apply_layout

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.communication.mesh import RankMesh
    from parastrat.runtime.context_parallel.stream import Division
    from parastrat.runtime.tensor_parallel.copies import Source
    from parastrat.runtime.tensor_parallel.layout import Layout, Step

#: pieces that a rank's positions are cut into, at most
_PIECES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """How layers and positions are divided."""

    layout: Layout
    division: Division

    def __str__(self) -> str:
        return f"{self.layout} {self.division}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proof:
    """Trials of both on one small copy; all ranks of ``mesh.sample`` run them together."""

    bench: Bench
    mesh: RankMesh

    def holds(self, both: Both, task: Task, expected: Results) -> Verdict:
        """Return the verdict on both, with the steps that a forward took on what is divided."""
        noted: dict[str, set[Step]] = {}
        trial = Trial(str(both), self.bench.mesh, partial(self._divide, both, noted))
        return replace(judged(self.bench.copy, expected, task, trial), steps=noted)

    def _divide(self, both: Both, noted: dict[str, set[Step]], copied: nn.Module) -> None:
        small = replace(on_copy(self.bench, both.layout), loss=both.layout.loss)
        blocks = [*blocks_of(copied, both.division.container).values()]
        mesh: Any = self.mesh
        apply_layout(copied, small, mesh.tp, noted=noted)
        divide(copied, blocks, stream_of(both.division, mesh.cp, further=further_ranks(both.layout, mesh)))


def further_ranks(layout: Layout | None, mesh: RankMesh) -> int:
    """Return how many ranks of tp divide the positions that each rank of cp has; 1: none do."""
    return mesh.tp.size() if mesh.tp is not None and layout is not None and layout.sequence else 1


def proven_together(source: Source, both: Both, mesh: RankMesh) -> Both:
    """Return both, or less of them, as they were proven together; all ranks of the job call it.

    Raises:
        WrapError: if they do not hold beside each other.
        MismatchError: if another rank failed, naming it, or tried something else.
    """
    ranks: Any = mesh.sample
    degree = mesh.tp.size() if mesh.tp is not None else 1
    bench = together(lambda: bench_of(source, ranks, degree=degree, positions=_PIECES * ranks.size()))
    bench = replace(bench, task=replace(bench.task, averages=mesh.cp))
    return in_step(lambda: _proven(source, both, _Proof(bench=bench, mesh=mesh)), ranks)


def _proven(source: Source, both: Both, proof: _Proof) -> Both:
    bench = proof.bench
    try:
        first = next(iter(blocks_of(bench.copy, both.division.container)))
        check_shares_differ(bench.copy, bench.task.inputs, _PIECES * bench.mesh.size(), first)
    except NoStreamError as error:
        raise _refused(source, str(error)) from None
    reason = ""
    for fewer in _ways(both):
        verdict = proof.holds(fewer, bench.task, bench.expected)
        if verdict:
            layout = fewer.layout.also(verdict.steps)
            return _with_loss(both, replace(fewer, layout=layout), proof)
        reason = reason or f"not proven: {verdict}"
    raise _refused(source, reason)


def _ways(both: Both) -> Iterator[Both]:
    """Yield both with less and less divided, and nothing up to the loss."""
    layout, division = replace(both.layout, loss=False), replace(both.division, loss=False)
    layouts, divisions = [layout], [division]
    if layout.sequence:
        layouts.append(unstreamed(layout, "it does not hold beside cp"))
    if division.head:
        divisions.append(replace(division, head="", whole_between=False))
    for each in layouts:
        for other in divisions:
            yield Both(layout=each, division=other)


def _with_loss(wanted: Both, proven: Both, proof: _Proof) -> Both:
    """Return both with logits divided up to the loss, as far as each was alone and holds together."""
    bench, reason, columns = proof.bench, "", wanted.layout.loss
    rows = wanted.division.loss and bool(proven.division.head)
    names = repeated_blocks(bench.copy).names
    head = next(iter(heads(proven.layout, names)), proven.division.head)
    task = replace(task_of_loss(bench.copy, bench.task.inputs, head), averages=proof.mesh.cp)
    # with a head of positions its output is whole for them alone, or for both
    flags = ((columns, rows), (False, rows), (columns and not proven.division.head, False))
    for by_vocabulary, by_positions in dict.fromkeys(flags):
        if not (by_vocabulary or by_positions):
            continue
        further = Both(
            layout=replace(proven.layout, loss=by_vocabulary),
            division=replace(proven.division, loss=by_positions),
        )
        why = unproven(bench.copy, task, bench.mesh, partial(proof.holds, further, task))
        if not why:
            return further
        reason = reason or why
    if not wanted.layout.loss:
        return proven
    left = (*proven.layout.left, Left(kind="loss parallelism", reason=f"beside cp, {reason}"))
    return replace(proven, layout=replace(proven.layout, left=left))


def _refused(source: Source, reason: str) -> WrapError:
    return WrapError(
        f"the positions of this {type(source.module).__name__} cannot be divided by cp beside its layers "
        f"by tp ({reason})",
        hint="plan with one of them: parastrat recommend --cp 1, or --tp 1",
    )
