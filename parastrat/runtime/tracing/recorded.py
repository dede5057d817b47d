"""What a watched step leaves behind: the storages that it made, and the stretches of its forward."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from parastrat.model import Split
from parastrat.runtime.tracing.operators import Call


@dataclass(slots=True, kw_only=True, eq=False)
class Allocation:
    """One storage."""

    bytes: int
    #: index of the segment that made it; for the model's inputs the first
    created: int
    #: made by an attention core
    attention: bool = False
    #: segments whose operators keep it for backward, with how many of them do
    savers: Counter[int] = field(default_factory=Counter)
    #: the last segment of the forward that reads it
    last_used: int = -1
    #: a gradient flows through it
    differentiable: bool = False
    #: backward makes it a parameter's gradient
    gradient: bool = False
    #: such a gradient, the sum of another one and what a further use of the parameter gives
    added: bool = False
    #: lives as long as the model
    constant: bool = False
    #: autocast's copy of a parameter, which memory counts with the weights
    cast: bool = False
    #: alive at the end of the forward
    kept: bool = False
    #: what tensor parallelism divides it by
    way: Split = Split.REPLICATED
    #: elements of the tensor that it was made for
    elements: int = 0
    #: every rank reads all of it
    gathered: bool = False
    #: for which it is, each of which has a copy of its own
    regions: set[str] = field(default_factory=set)


@dataclass(slots=True, kw_only=True, eq=False)
class Segment:
    """One stretch of the forward."""

    #: name of the repeated block; empty for what runs between
    block: str
    calls: list[Call] = field(default_factory=list)
    #: what its backward runs of it again, where the module itself checkpoints
    again: list[Call] = field(default_factory=list)
    #: names of the parameters that it reads
    parameters: dict[str, None] = field(default_factory=dict)
    #: what a checkpoint around it keeps
    inputs: list[Allocation] = field(default_factory=list)
    #: bytes of the outputs that the ``selective`` policy keeps, by what divides them
    selective: Counter[Split] = field(default_factory=Counter)
    #: bytes of the results of operators that read a trained parameter, by what divides them: of their
    #: gradients a split backward makes those of weights later
    awaited: Counter[Split] = field(default_factory=Counter)
    #: bytes of each result that tensor-parallel ranks add up
    added_up: list[int] = field(default_factory=list)
    #: bytes of the largest tensor that a loss makes of divided logits
    of_loss: int = 0
    matmuls: int = 0
    #: the segment of an equal block, if this one did not run
    twin: int | None = None
    #: then what that one returned
    twin_output: Allocation | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Behind:
    """What there is behind backward."""

    #: what the model returned, of which backward reads nothing: a variable holds it meanwhile
    output: list[Allocation] = field(default_factory=list)
    #: the loss that began it is the model's own
    own_loss: bool = False
    #: names of the parameters with gradients
    reached: set[str] = field(default_factory=set)
    #: segments whose backward runs; of blocks that did not run those to whose place a gradient came
    reached_segments: set[int] = field(default_factory=set)
    #: what the module itself holds, such as tables that it makes when it first runs
    left: list[Allocation] = field(default_factory=list)
    #: events of the forward up to the last operator that reads a trained parameter
    trained: int = 0
    #: bytes of those of them that are tables
    tables: int = 0

    def returns(self, made: Allocation) -> None:
        """Note what the forward returned: it is there while backward runs, not kept for it."""
        if made.kept and not made.savers.total():
            made.kept = False
            self.output.append(made)
