"""What mamba-ssm's fused function keeps for backward, without its kernels: they need a GPU.

``MambaSplitConv1dScanCombinedFn`` of github.com/state-spaces/mamba (mamba_ssm/ops/triton/ssd_combined.py):
what the first projection gave, the scan's output, and the statistics of the norm, beside parameters.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch.nn import functional


class Scan(torch.autograd.Function):
    """Of the right shapes, and of no meaning."""

    @staticmethod
    def forward(ctx: Any, projected: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:  # type: ignore[override]
        scanned = projected[..., : weight.shape[1]].clone()
        statistics = torch.ones(*projected.shape[:-1], groups)
        ctx.save_for_backward(projected, scanned, statistics, weight)
        return functional.linear(scanned, weight)

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:  # type: ignore[override]
        projected, _, _, weight = ctx.saved_tensors
        return torch.zeros_like(projected), torch.zeros_like(weight), None


def _scanned(projected: torch.Tensor, *_: object, **named: Any) -> torch.Tensor:
    output: torch.Tensor = Scan.apply(projected, named["outproj_weight"], named["ngroups"])
    return output


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers' Mamba-2 layers find the kernel."""
    for family in ("mamba2", "nemotron_h"):
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        monkeypatch.setattr(module, "mamba2_split_conv1d_scan_combined", _scanned)
