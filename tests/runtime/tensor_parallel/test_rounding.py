"""Gradients that are zero but for rounding: what rounding moves is proven in fp64, what is wrong is not."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from runtime.ranks import on_ranks
from torch import nn

from parastrat.runtime.communication.gloo import mesh_of_dtensors
from parastrat.runtime.tensor_parallel import proof
from parastrat.runtime.tensor_parallel.computed import Task, results
from parastrat.runtime.tensor_parallel.layout import Layout
from parastrat.runtime.tensor_parallel.proof import proven

pytestmark = pytest.mark.slow


class Shifted(nn.Module):
    """A layer whose bias a norm takes away again, so that its gradient is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed: torch.Tensor = self.norm(self.up(x))
        return normed


class Single(Shifted):
    """The same with code that knows fp32 alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError("fp32 alone")
        return super().forward(x)


class Faint(nn.Module):
    """Two layers, of which one adds so little that its gradients are small beside the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.loud, self.quiet = nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = self.loud(x) + 1e-8 * self.quiet(x)
        return added


def rounded(gradient: torch.Tensor) -> torch.Tensor:
    """What a sum of many terms in another order gives."""
    return gradient + 500 * torch.finfo(gradient.dtype).eps


def shifted(gradient: torch.Tensor) -> torch.Tensor:
    """As little, in any format."""
    return gradient + 500 * torch.finfo(torch.float32).eps


CASES: dict[str, tuple[type[Shifted], str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "rounded": (Shifted, "up.bias", rounded),
    "wrong": (Shifted, "up.bias", shifted),
    "far": (Shifted, "up.bias", lambda gradient: gradient + 1.0),
    "not in fp64": (Single, "up.bias", rounded),
    "as rounding moves it": (Single, "up.bias", lambda gradient: gradient + 1e-8),
    "small and wrong": (Faint, "quiet.weight", lambda gradient: 1.5 * gradient),
    "small and right": (Faint, "quiet.weight", lambda gradient: (1 + 1e-6) * gradient),
}


def verdicts() -> dict[str, tuple[bool, str]]:
    dist.init_process_group("gloo")
    mesh = mesh_of_dtensors("cpu", (2,), ("tp",), ("tp",))
    found = {}
    for name, (kind, changed, change) in CASES.items():
        torch.manual_seed(0)
        module, task = kind(), Task(inputs=torch.randn(16, 4))

        def divide(
            copied: nn.Module, *_: object, changed: str = changed, change: Callable[..., object] = change
        ) -> None:
            if dist.get_rank() == 1:  # one that differs is enough
                copied.get_parameter(changed).register_hook(change)

        with patch.object(proof, "apply_layout", side_effect=divide):
            verdict = proven(module, results(module, task), task, Layout(groups=()), mesh)
        found[name] = (bool(verdict), str(verdict))
    dist.destroy_process_group()
    return found


def test_what_rounding_moves_is_proven_in_fp64() -> None:
    for found in on_ranks(2, verdicts):
        for name in ("rounded", "as rounding moves it", "small and right"):
            assert found[name] == (True, "proven")
        assert found["small and wrong"] == (False, "quiet.weight differs by 0.5 of its size")
        for name in ("wrong", "far", "not in fp64"):
            held, said = found[name]
            assert not held
            assert said.startswith("up.bias differs by")
