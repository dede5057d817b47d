"""Memory and time of one plan, in parts that add up."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import attrgetter


class Verdict(StrEnum):
    """Whether the peak fits. Only the first two can run."""

    #: peak + margin <= usable memory
    FITS = "fits"
    #: peak <= usable memory < peak + margin
    TIGHT = "tight"
    DOES_NOT_FIT = "does_not_fit"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """The composition at the moment of the peak on the worst rank, bytes."""

    #: and buffers, which every rank has whole
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    #: gathered parameters, communication buffers, working tensors of the running block
    transient: int
    #: context, libraries, communicators, allocator fragmentation
    overhead: int
    #: usable memory of the device
    capacity: int
    #: 95th percentile of the error
    margin: int

    @property
    def parts(self) -> dict[str, int]:
        """The summands of ``total`` by name."""
        return dict(zip(_OF_MEMORY, _memory_parts(self), strict=True))

    @property
    def total(self) -> int:
        return sum(_memory_parts(self))

    @property
    def verdict(self) -> Verdict:
        if self.total + self.margin <= self.capacity:
            return Verdict.FITS
        return Verdict.TIGHT if self.total <= self.capacity else Verdict.DOES_NOT_FIT


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEstimate:
    """One optimizer step on the slowest rank, seconds; ``exposed`` is what compute does not hide."""

    compute: float
    tp_exposed: float
    cp_exposed: float
    ep_exposed: float
    #: with what FSDP2 copies for its collectives, in the stream that computes
    dp_exposed: float
    pp_bubble: float
    pp_exposed: float
    optimizer: float
    #: 80 % interval of the step
    step_low: float
    step_high: float
    #: of that, the ln of the factor by which the device's own parts of every plan may be off alike, because
    #: a rate of it is assumed; None where none is
    assumed_spread: float | None = None

    @property
    def parts(self) -> dict[str, float]:
        """The summands of ``step`` by name."""
        return dict(zip(_OF_TIME, _time_parts(self), strict=True))

    @property
    def step(self) -> float:
        whole: float = sum(_time_parts(self))
        return whole

    def may_tie(self, other: TimeEstimate) -> bool:
        """Return whether the 80 % intervals overlap.

        Two plans of a device share what is assumed of it: if it is twice as fast, it is so for both. They
        may tie if their intervals without that overlap at some rate within what is assumed; as the ratio of
        two steps rises or falls with the rate throughout, at its ends or as it is.
        """
        shared = self.assumed_spread
        if shared is None or other.assumed_spread is None:
            return self.step_low <= other.step_high and other.step_low <= self.step_high
        apart = self._own_spread + other._own_spread
        factors = (math.exp(-shared), 1.0, math.exp(shared))
        ratios = [math.log(self._step_at(factor) / other._step_at(factor)) for factor in factors]
        return min(ratios) <= apart and max(ratios) >= -apart

    @property
    def _own_spread(self) -> float:
        """The ln of the interval's half without what all plans share."""
        whole = math.log(self.step_high / self.step)
        return math.sqrt(max(0.0, whole**2 - (self.assumed_spread or 0.0) ** 2))

    def _step_at(self, factor: float) -> float:
        """Return the step if everything that a device does by itself took so many times as long."""
        own = self.compute + self.pp_bubble + self.optimizer
        return self.step + (factor - 1) * own


#: the summands, which come first; to read them at once takes an eighth of the time of one after the other
_OF_MEMORY = tuple(field.name for field in fields(MemoryEstimate)[:6])
_OF_TIME = tuple(field.name for field in fields(TimeEstimate)[:8])
_memory_parts, _time_parts = attrgetter(*_OF_MEMORY), attrgetter(*_OF_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a plan needs and yields."""

    memory: MemoryEstimate
    time: TimeEstimate
    #: tokens, or samples without tokens
    tokens_per_s_per_gpu: float
    #: 6 N_active + 12 L h s per token (half of the attention where causal), no recompute counted
    model_tflops_per_gpu: float
    #: of the device's dense datasheet rate; None without one
    mfu: float | None

    @property
    def verdict(self) -> Verdict:
        return self.memory.verdict

    @property
    def fits(self) -> bool:
        return self.verdict is not Verdict.DOES_NOT_FIT
