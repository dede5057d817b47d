"""What a dry run of one rank finds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The collectives of one kind over one group size in a step of one rank."""

    name: str
    ranks: int
    count: int
    #: of what this rank puts in and takes out, whichever is more, all of them together
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """One rank's memory and messages in a step, bytes of tensors that live; no allocator, no context."""

    rank: int
    #: of the step that was run: memory repeats from the second on
    micro_batches: int
    #: parameters, their shares, and buffers, before the step
    parameters: int
    #: at the end of the forward of the last micro-batch; None under a pipeline, which mixes them
    after_forward: int | None
    #: most in forwards and backwards, optimizer states among them
    forward_backward: int
    #: most in the optimizer step
    optimizer_step: int
    #: most that an allocator reserved for them, with what it lost; None on fake tensors
    reserved: int | None = None
    traffic: tuple[Traffic, ...]
    #: what this does not prove, in sentences
    caveats: tuple[str, ...] = ()
    seconds: float

    @property
    def peak(self) -> int:
        """Most that lives at any time of a step after the first, whose optimizer states are there."""
        return max(self.forward_backward, self.optimizer_step)
