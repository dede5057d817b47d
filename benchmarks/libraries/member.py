"""A model of a library, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.dropout import _DropoutNd


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A way to build and to call a model."""

    #: without what draws at random, as far as the library can leave it out
    build: Callable[[], nn.Module]
    #: a batch of so many samples, always the same: a tensor, a tuple of arguments or a dict of keywords
    inputs: Callable[[int], Any]


def without_dropout(module: nn.Module) -> nn.Module:
    """Return a model whose dropouts drop nothing."""
    for part in module.modules():
        if isinstance(part, _DropoutNd):
            part.p = 0.0
    return module


def drawn(samples: int, *shape: int) -> torch.Tensor:
    """Return numbers of a shape for each sample."""
    return torch.randn(samples, *shape, generator=torch.Generator().manual_seed(0))


def ids(samples: int, length: int, vocabulary: int) -> torch.Tensor:
    """Return tokens, of which the first ones are often special."""
    draw = torch.Generator().manual_seed(0)
    return torch.randint(3, vocabulary, (samples, length), generator=draw)
