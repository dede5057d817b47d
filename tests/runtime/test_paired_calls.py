"""What a forward runs for one sample, of two traces whose loops over samples are not equally long."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from parastrat.model import OperatorKind
from parastrat.runtime.tracing.operators import Call
from parastrat.runtime.tracing.paired import calls_for_one
from parastrat.runtime.tracing.trace import traced_module
from parastrat.stack import Kernels
from parastrat.workload import Precision


def light(size: float) -> Call:
    return Call(kind=OperatorKind.ELEMENTWISE, flops=0, bytes=size)


def product(rows: int) -> Call:
    return Call(kind=OperatorKind.MATMUL, flops=2.0 * rows, bytes=4.0 * rows, m=rows, n=1, k=1)


def test_calls_that_are_alike_are_told_by_the_line_through_both() -> None:
    assert calls_for_one([product(20), light(8)], [product(40), light(12)]) == [product(10), light(6)]


def test_a_loop_over_samples_runs_once_for_one() -> None:
    found = calls_for_one(
        [product(6), light(8), product(6), light(8), product(20), light(16)],
        [product(6), light(8)] * 4 + [product(40), light(32)],
    )
    assert found is not None
    assert Counter(found) == Counter([product(6), product(10), light(8), light(8)])


@pytest.mark.parametrize(
    ("small", "large"),
    [
        # another call for more samples
        ([light(8)], [light(16), light(16)]),
        ([light(8)] * 5, [light(16)] * 7),
        # as many more as a loop would make, of other sizes
        ([product(6), product(6)], [product(12)] * 4),
        ([product(6)] * 3, [product(6)] * 5),
        ([product(6)], []),
    ],
)
def test_others_are_refused(small: list[Call], large: list[Call]) -> None:
    assert calls_for_one(small, large) is None


class Looping(nn.Module):
    """Attends within each sample alone, one after the other."""

    def __init__(self, *, loops: bool) -> None:
        super().__init__()
        self.up, self.down, self.loops = nn.Linear(8, 8), nn.Linear(8, 8), loops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        if self.loops:
            x = torch.cat([each @ each.transpose(1, 2) @ each for each in x.split(1)])
        else:
            x = x @ x.transpose(1, 2) @ x
        return self.down(x)


def test_a_forward_that_loops_over_samples_computes_as_much() -> None:
    def computed(**how: Any) -> float:
        source = traced_module(
            Looping(**how).to("meta"), ref="it", sample_inputs=torch.zeros(2, 16, 8), divides=False
        )
        return sum(block.flops for block in source.at(None, Precision.FP32, Kernels.EAGER).blocks)

    assert computed(loops=True) == computed(loops=False)
