"""The matrices that Muon updates: weights of products in repeated blocks, each orthogonalized whole.

``torch.optim.Muon`` takes parameters of two dimensions; tables, heads, norms and biases are AdamW's beside
it, as its documentation has it (https://docs.pytorch.org/docs/stable/generated/torch.optim.Muon.html).
Experts are matrices each, whether a module stacks them or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.columns import code_of
from parastrat.elementwise import where
from parastrat.model import OperatorKind, Parameters, Split
from parastrat.plan import Shard
from parastrat.ranks.division import divided, division, sharded_total
from parastrat.ranks.load import block_kinds
from parastrat.ranks.totals import totals_of
from parastrat.remembered import remembered
from parastrat.workload import Optimizer

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.model import Block
    from parastrat.ranks.division import Division
    from parastrat.ranks.load import ParameterTotals, RankLoad
    from parastrat.units import Bytes, Mask, Numbers

#: bytes that a step of ``torch.optim.Muon`` (torch 2.13) makes at most for an element of a matrix of fp32,
#: its update in fp32 and further ones in bf16, and for one of its Gram matrix
_WHOLE, _SQUARE = 12, 4
#: and where DTensors share it, of the whole beside what a rank has: as measured over 8 ranks of fake
#: tensors, matrices of 4,096 by 1,024 to 14,336 took 0.4 to 0.9 of it
_GATHERED, _GATHERED_SQUARE = 6, 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The weights of one product."""

    rows: int
    columns: int
    #: of one repeat of a block
    count: int
    split: Split

    @property
    def elements(self) -> int:
        """Those of one."""
        return self.rows * self.columns

    @property
    def short(self) -> int:
        """The shorter side."""
        return min(self.rows, self.columns)

    @property
    def long(self) -> int:
        """The longer side."""
        return max(self.rows, self.columns)

    @property
    def square(self) -> int:
        """Elements of its Gram matrix."""
        return self.short**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """Those of a model."""

    #: of one repeat of each kind of block
    of_kinds: tuple[tuple[Matrix, ...], ...]
    #: their elements by what divides them
    totals: tuple[ParameterTotals, ...]
    #: elements of the largest, and of its Gram matrix
    largest: tuple[int, int]

    def held(self, load: RankLoad, d: Division) -> tuple[Numbers, Numbers]:
        """Return how many elements tp and ep leave on a rank, of dense matrices and of experts."""
        dense: Numbers = 0
        experts: Numbers = 0
        for totals, repeats in zip(self.totals, load.repeats, strict=True):
            own, own_experts = divided(totals, d)
            dense, experts = dense + own * repeats, experts + own_experts * repeats
        return dense, experts

    def temporaries(self, d: Division, sharded: Mask) -> Bytes:
        """Return what a step makes for the largest matrix."""
        elements, square = self.largest
        over = d.tensor * where(sharded, d.dense_shards, 1)
        shared = _WHOLE / over * elements + _GATHERED * elements + _GATHERED_SQUARE * square
        return where(over > 1, shared, float(_WHOLE * elements + _SQUARE * square))


def matrices_of(block: Block, experts: int) -> tuple[Matrix, ...]:
    """Return what Muon updates of one repeat of a block; nothing of one that is not repeated.

    No group of parameters has more of them than it trains: what is not trained is none, nor is a weight
    that several products read one more.
    """
    left = dict.fromkeys(Split, 0)
    for group in block.parameters if block.unit else ():
        left[group.split] += group.trainable
    found = []
    for operator in block.operators:
        many = {OperatorKind.MATMUL: 1, OperatorKind.GROUPED_MATMUL: experts}.get(operator.kind, 0)
        count = many * operator.count if operator.weighted else 0
        matrix = Matrix(rows=operator.n, columns=operator.k, count=count, split=operator.split)
        if 0 < matrix.elements * count <= left[matrix.split]:
            left[matrix.split] -= matrix.elements * count
            found.append(matrix)
    return tuple(found)


@remembered
def muon_matrices(facts: Facts) -> Matrices | None:
    """Return what Muon updates of a job's model; None where it has none, or the optimizer is another."""
    if facts.workload.optimizer is not Optimizer.MUON:
        return None
    blocks = block_kinds(facts.model).blocks
    of_kinds = tuple(matrices_of(block, facts.model.experts or 1) for block in blocks)
    every = [(matrix.elements, matrix.square) for matrices in of_kinds for matrix in matrices]
    if not every:
        return None
    return Matrices(
        of_kinds=of_kinds,
        totals=tuple(_totals(matrices) for matrices in of_kinds),
        largest=max(every),
    )


def _totals(matrices: tuple[Matrix, ...]) -> ParameterTotals:
    groups = [Parameters(trainable=each.elements * each.count, split=each.split) for each in matrices]
    return totals_of(groups)


def updated_matrices(facts: Facts, c: Columns, load: RankLoad) -> Numbers:
    """Return the elements of matrices that one rank's Muon updates."""
    matrices, d = muon_matrices(facts), division(c)
    if matrices is None:
        return 0
    return sharded_total(matrices.held(load, d), d, c.shard >= code_of(Shard.OPTIMIZER))
