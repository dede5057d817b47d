"""Seconds in which Muon orthogonalizes what it updates: products that no micro-batch makes shorter.

A matrix of short side m and long side n goes through five Newton-Schulz iterations in bf16, of three
products each: 4 m^2 n FLOPs with the matrix, 2 m^3 with its Gram matrix (torch/optim/_muon.py,
``_zeropower_via_newtonschulz``; https://kellerjordan.github.io/posts/muon/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.communication import Group, all_reduce_s, ring_s
from parastrat.cost.compute import joined
from parastrat.cost.rates import reached_share, sustained_flops_per_s
from parastrat.model import Split
from parastrat.plan import Shard
from parastrat.ranks.division import division
from parastrat.ranks.matrices import muon_matrices
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.ranks import RankLoad
    from parastrat.ranks.matrices import Matrix
    from parastrat.units import Numbers, Seconds

_ITERATIONS = 5
_BF16 = 2
#: an update's kernels beside the iterations' three products each
_LAUNCHES = 8 + 3 * _ITERATIONS
#: of matrices by rows over 8 ranks, DTensor (torch 2.13) all-reduced two Gram matrices in each iteration,
#: and gathered the matrix where it has no more rows than columns; each rank made the product of Gram
#: matrices whole
_SUMS = 2


class _Products(NamedTuple):
    """What an orthogonalization takes on one device."""

    #: that ranks which share the matrix divide
    divided: Seconds
    #: and that each has whole
    whole: Seconds


def orthogonalized_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric | None) -> Seconds:
    """Return what Muon's iterations take for the matrices of a rank; 0 under other optimizers.

    Shards of FSDP2 and tp share each matrix; experts are whole on their ranks. ZeRO-1 gives each matrix to
    one of the ranks that have it.
    """
    matrices = muon_matrices(facts)
    if matrices is None:
        return 0.0
    d = division(c)
    parameters, held = c.shard == code_of(Shard.PARAMETERS), c.shard >= code_of(Shard.OPTIMIZER)
    apart = np.where(held & ~parameters, c.dp * c.cp, 1)
    over = np.where(parameters, d.dense_shards, 1)
    experts = d.experts * np.where(parameters, d.expert_shards, 1)
    launches, seconds = _LAUNCHES * facts.hardware.device.launch_s, 0.0
    for of_kind, repeats in zip(matrices.of_kinds, load.repeats, strict=True):
        for matrix in of_kind:
            products = _products_s(facts, matrix)
            if matrix.split is Split.EXPERT:
                each = joined(sum(products) / experts, launches / experts)
            else:
                share = over * np.where(matrix.split is Split.TENSOR, d.tensor, 1)
                computed = joined(products.divided / share + products.whole, launches)
                each = computed + _sent_s(matrix, share, fabric)
            seconds = seconds + each * matrix.count * repeats / apart
    return seconds


def _products_s(facts: Facts, matrix: Matrix) -> _Products:
    """Return the products' seconds on one device, at the rates of those of the model."""
    device = facts.hardware.device
    curve, short, long = device.matmul, matrix.short, matrix.long
    rate = sustained_flops_per_s(device, Precision.BF16) * reached_share(facts)

    def seconds(m: int, n: int, k: int) -> Seconds:
        lengths = (1 + curve.m_half / m) * (1 + curve.n_half / n) * (1 + curve.k_half / k)
        return 2 * m * n * k / rate * lengths

    with_it = seconds(short, short, long) + seconds(short, long, short)
    return _Products(divided=_ITERATIONS * with_it, whole=_ITERATIONS * seconds(short, short, short))


def _sent_s(matrix: Matrix, ranks: Numbers, fabric: Fabric | None) -> Seconds:
    """Return what ranks that share a matrix send of it."""
    if fabric is None:
        return 0.0
    group = Group(ranks=ranks, stride=1)
    sums = _SUMS * all_reduce_s(_BF16 * matrix.square, group, fabric)
    gathers = matrix.rows <= matrix.columns
    gathered = gathers * ring_s(_BF16 * matrix.elements, group, fabric)
    return _ITERATIONS * (sums + np.where(ranks > 1, gathered, 0.0))
