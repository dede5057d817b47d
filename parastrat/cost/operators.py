"""The operators of blocks as arrays, to be timed together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.hardware import ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_WIDTH
from parastrat.model import OperatorKind, Split
from parastrat.remembered import remembered

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.model import Block, Operator

#: what may divide an operator, in the order in which tables count it
SPLITS = tuple(Split)

#: of products that tp divides
_COLUMNS_AND_ROWS = (Split.TENSOR, Split.VOCABULARY)
_PRODUCTS = (OperatorKind.MATMUL, OperatorKind.GROUPED_MATMUL, OperatorKind.CONVOLUTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """The matrix products of several blocks, one after the other."""

    #: of all passes
    flops: Any
    m: Any
    n: Any
    k: Any
    #: place among SPLITS
    split: Any
    #: where tensor parallelism divides a side
    divides_n: Any
    divides_k: Any
    weighted: Any
    #: whose sequence is gathered where tensor parallelism divides it
    gathered: Any
    #: one for each expert
    grouped: Any
    convolution: Any
    #: how often a convolution reads an element of its image; 1 of others
    reuse: Any
    #: in one of the model's repeated blocks
    repeated: Any
    #: the blocks that have products, with the first of each
    blocks: Any
    starts: Any

    def by_block(self, rows: Any, many: int) -> Any:
        """Return the sums over each block's products, blocks before plans."""
        if not len(self.starts):
            return np.zeros((many, *rows.shape[1:]))
        own = np.add.reduceat(rows, self.starts, axis=0)
        if len(own) == many:
            return own
        found = np.zeros((many, *rows.shape[1:]))
        found[self.blocks] = own
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Attentions:
    """The attention of several blocks, of all passes and for one sample; unknown shapes are large ones."""

    flops: Any
    keys: Any
    rows: Any
    width: Any
    #: place among SPLITS
    split: Any
    #: the block of each
    blocks: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTable:
    """What blocks compute for one sample."""

    products: Products
    attention: Attentions
    #: bytes that scans and all others move, by block and what divides them
    scans: Any
    traffic: Any
    #: operators of each block, and the grouped products among them
    launches: Any
    grouped: Any


def beside(values: Any, c: Columns) -> Any:
    """Return one value a row, beside plans on further axes."""
    return values.reshape(-1, *([1] * np.ndim(c.tp)))


@remembered
def operator_table(blocks: tuple[Block, ...]) -> OperatorTable:
    """Return the operators of some blocks."""
    scans, traffic = np.zeros((2, len(blocks), len(SPLITS)))
    products: list[tuple[int, Operator]] = []
    attentions: list[tuple[int, Operator]] = []
    for place, block in enumerate(blocks):
        for operator in block.operators:
            if operator.kind in _PRODUCTS:
                products.append((place, operator))
            elif operator.kind is OperatorKind.ATTENTION:
                attentions.append((place, operator))
            elif operator.kind is OperatorKind.SCAN:
                scans[place, SPLITS.index(operator.split)] += operator.bytes * operator.count
            else:
                traffic[place, SPLITS.index(operator.split)] += operator.bytes * operator.count
    return OperatorTable(
        products=_products(products, blocks),
        attention=_attentions(attentions),
        scans=scans,
        traffic=traffic,
        launches=np.array([sum(operator.count for operator in block.operators) for block in blocks]),
        grouped=np.array([_grouped(block) for block in blocks]),
    )


def _grouped(block: Block) -> int:
    kind = OperatorKind.GROUPED_MATMUL
    return sum(operator.count for operator in block.operators if operator.kind is kind)


def _attentions(several: list[tuple[int, Operator]]) -> Attentions:
    operators = [operator for _, operator in several]
    return Attentions(
        flops=np.array([operator.flops * operator.count for operator in operators], dtype=float),
        keys=np.array([operator.n or ATTENTION_KEYS for operator in operators], dtype=float),
        rows=np.array([operator.m or ATTENTION_ROWS for operator in operators], dtype=float),
        width=np.array([operator.k or ATTENTION_WIDTH for operator in operators], dtype=float),
        split=np.array([SPLITS.index(operator.split) for operator in operators], dtype=np.int64),
        blocks=np.array([place for place, _ in several], dtype=np.int64),
    )


def _products(several: list[tuple[int, Operator]], blocks: tuple[Block, ...]) -> Products:
    owners, operators = [place for place, _ in several], [operator for _, operator in several]
    having = list(dict.fromkeys(owners))
    return Products(
        flops=np.array([operator.flops * operator.count for operator in operators], dtype=float),
        m=np.array([operator.m for operator in operators], dtype=float),
        n=np.array([operator.n for operator in operators], dtype=float),
        k=np.array([operator.k for operator in operators], dtype=float),
        split=np.array([SPLITS.index(operator.split) for operator in operators], dtype=np.int64),
        divides_n=np.array([operator.split_side == "n" for operator in operators], dtype=bool),
        divides_k=np.array([operator.split_side == "k" for operator in operators], dtype=bool),
        weighted=np.array([operator.weighted for operator in operators], dtype=bool),
        gathered=np.array([operator.split in _COLUMNS_AND_ROWS for operator in operators], dtype=bool),
        grouped=np.array(
            [operator.kind is OperatorKind.GROUPED_MATMUL for operator in operators], dtype=bool
        ),
        convolution=np.array(
            [operator.kind is OperatorKind.CONVOLUTION for operator in operators], dtype=bool
        ),
        reuse=np.array([operator.reuse for operator in operators], dtype=float),
        repeated=np.array([blocks[place].unit for place in owners], dtype=bool),
        blocks=np.array(having, dtype=np.int64),
        starts=np.array([owners.index(place) for place in having], dtype=np.int64),
    )
