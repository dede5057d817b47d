"""Attention on CPUs refuses what has no heads, while layouts are tried: torch 2.11 ends the process there.

Code that cuts a fused product at sizes of the whole has nothing left of keys on a rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class NoEmptyAttention(TorchFunctionMode):
    """Raises ``ValueError`` where queries, keys or values have no elements."""

    def __torch_function__(
        self, func: Any, _types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = (*args, *(kwargs or {}).values())
        if func is functional.scaled_dot_product_attention and any(
            isinstance(each, torch.Tensor) and not each.numel() for each in given
        ):
            raise ValueError("attention is given queries, keys or values without elements")
        return func(*args, **kwargs or {})
