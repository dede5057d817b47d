"""Bytes that blocks keep for backward, by what divides them and by recompute policy."""

from __future__ import annotations

from dataclasses import dataclass

from parastrat.plan import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Bytes for one sample, by what divides them."""

    replicated: float = 0
    #: split by tp
    tensor: float = 0
    #: split by tp with sequence parallelism, else replicated
    sequence: float = 0
    #: of experts: split by tp where it divides experts or under ep their tokens
    expert: float = 0
    #: logits: split by tp with loss parallelism, else gathered on every rank
    loss: float = 0
    #: as much for any number of samples
    fixed: float = 0

    @property
    def total(self) -> float:
        return self.replicated + self.tensor + self.sequence + self.expert + self.loss + self.fixed

    def times(self, share: float) -> Saved:
        """Return so many times each."""
        return Saved(
            replicated=share * self.replicated,
            tensor=share * self.tensor,
            sequence=share * self.sequence,
            expert=share * self.expert,
            loss=share * self.loss,
            fixed=share * self.fixed,
        )

    # a model at one sequence length adds hundreds; to go through the names takes three times as long
    def __add__(self, other: Saved) -> Saved:
        return Saved(
            replicated=self.replicated + other.replicated,
            tensor=self.tensor + other.tensor,
            sequence=self.sequence + other.sequence,
            expert=self.expert + other.expert,
            loss=self.loss + other.loss,
            fixed=self.fixed + other.fixed,
        )


#: no bytes
NOTHING = Saved()


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """What a block's forward keeps for its backward, per recompute policy, for one sample."""

    none: Saved
    attention: Saved
    selective: Saved
    full: Saved
    #: where attention's output is kept, and where every product's is as well; None: not known
    attended: Saved | None = None
    products: Saved | None = None

    def under(self, policy: Recompute) -> Saved:
        """Return what is kept under one policy."""
        saved: Saved = getattr(self, policy.value)
        return saved
