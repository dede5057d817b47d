"""What optimizers were seen to do, in a few numbers by which ranks are compared."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: steps that each has begun
_steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()


def count_step(optimizer: Any) -> int:
    """Count a step that begins; return how many the optimizer has begun."""
    _steps[optimizer] = _steps.get(optimizer, 0) + 1
    return _steps[optimizer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is known of the optimizers that step some parameters, each added up."""

    steps: float
    rates: float
    #: momentum, decay and what else their groups hold
    others: float
    #: tells which of the parameters they step
    of: int

    @property
    def numbers(self) -> tuple[float, float, float]:
        """What ranks are compared by."""
        return self.steps, self.rates, self.others


def settings_of(held: Mapping[int, str]) -> Settings:
    """Return what is known of the optimizers that step these parameters: names by identity."""
    steps = rates = others = 0.0
    of = 0
    for optimizer, count in list(_steps.items()):
        groups = optimizer.param_groups
        own = [held[id(each)] for group in groups for each in group["params"] if id(each) in held]
        if own:
            of += sum(zlib.crc32(name.encode()) for name in own)
            steps += count
            rates += sum(_rate(group.get("lr")) for group in groups)
            others += sum(
                sum(_numbers(value))
                for group in groups
                for key, value in group.items()
                if key not in {"lr", "params"}
            )
    return Settings(steps=steps, rates=rates, others=others, of=of)


def _rate(value: Any) -> float:
    """Return a learning rate; zero where an optimizer finds its own, as Adafactor does of None."""
    return float(value) if isinstance(value, int | float | torch.Tensor) else 0.0


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float):
        yield float(value)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _numbers(each)
