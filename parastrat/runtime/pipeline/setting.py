"""In what number formats a forward runs, on real and on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from parastrat.runtime.precision import COMPUTE, weight_dtype
from parastrat.runtime.tensors.leaves import in_format
from parastrat.workload import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """In what formats the forward runs."""

    precision: Precision
    #: autocast; else weights and inputs are cast, as by FSDP2
    autocast: bool

    @property
    def dtype(self) -> torch.dtype:
        full = weight_dtype(self.precision)
        return full if self.autocast else COMPUTE.get(self.precision, full)

    def cast(self, batch: Any) -> Any:
        """Return a batch as FSDP2 would give it to the forward."""
        if self.autocast or self.precision not in COMPUTE:
            return batch
        return in_format(batch, self.dtype)

    @contextmanager
    def active(self) -> Iterator[None]:
        dtype = COMPUTE.get(self.precision) if self.autocast else None
        with nullcontext() if dtype is None else torch.autocast("cpu", dtype):
            yield
