"""What becomes of tensors at the ends of a stage."""

from __future__ import annotations

import torch

from parastrat.runtime.pipeline.border import Border
from parastrat.runtime.pipeline.route import TensorShape


def test_what_was_saved_survives_the_detaching_of_what_left() -> None:
    x = torch.randn(2, 3, requires_grad=True)
    y = x.relu()  # backward reads its result
    shape = TensorShape(shape=y.shape, dtype=y.dtype, requires_grad=True)
    # torch's split backward detaches a stage's output before the gradients of weights
    Border(split=True).leaving(y, shape).detach_()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, (x > 0).float())
