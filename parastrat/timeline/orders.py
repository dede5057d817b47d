"""What each rank of a pipeline computes, in its order, under every schedule.

Source: torch/distributed/pipelining/schedules.py, whose orders these are; idle slots, which it counts to
place communication, are left out, as what runs waits for what it reads and for nothing else.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING, NamedTuple

from parastrat.plan import PipelineSchedule
from parastrat.timeline.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Callable


class Action(NamedTuple):
    """One computation of a rank."""

    kind: Kind
    stage: int
    micro_batch: int


def orders(
    schedule: PipelineSchedule, pp: int, virtual_stages: int, micro_batches: int
) -> tuple[tuple[Action, ...], ...]:
    """Return the actions of each rank.

    Args:
        schedule: how they are ordered. V schedules have two virtual stages a rank, GPipe and 1F1B one.
        pp: ranks.
        virtual_stages: of each rank.
        micro_batches: of a step.

    Raises:
        ValueError: DualPipeV has fewer micro-batches than stages.
    """
    makers: dict[PipelineSchedule, Callable[[int], list[Action]]] = {
        PipelineSchedule.GPIPE: lambda rank: _all_at_once(pp, rank, 1, micro_batches, last_first=False),
        PipelineSchedule.LOOPED_BFS: lambda rank: _all_at_once(pp, rank, virtual_stages, micro_batches),
        PipelineSchedule.ONE_F_ONE_B: lambda rank: _one_f_one_b(pp, rank, micro_batches),
        PipelineSchedule.INTERLEAVED: lambda rank: _interleaved(pp, rank, virtual_stages, micro_batches),
        PipelineSchedule.INTERLEAVED_ZERO_BUBBLE: lambda rank: _interleaved(
            pp, rank, virtual_stages, micro_batches, split=True
        ),
        PipelineSchedule.ZBV: lambda rank: _zbv(pp, rank, micro_batches),
        PipelineSchedule.DUAL_PIPE_V: lambda rank: _dual_pipe_v(pp, rank, micro_batches),
    }
    if schedule is PipelineSchedule.DUAL_PIPE_V and micro_batches < 2 * pp:
        raise ValueError(f"DualPipeV with {micro_batches} micro-batches for {2 * pp} stages")
    return tuple(tuple(makers[schedule](rank)) for rank in range(pp))


class _Sequence:
    """Actions of a rank, each of a stage's next micro-batch."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        #: backwards of inputs whose weights wait, the first first
        self.waiting: deque[tuple[int, int]] = deque()
        self._next: defaultdict[tuple[str, int], int] = defaultdict(int)

    def forward(self, stage: int) -> None:
        self.actions.append(Action(Kind.FORWARD, stage, self._take("forward", stage)))

    def backward(self, stage: int) -> None:
        self.actions.append(Action(Kind.BACKWARD, stage, self._take("backward", stage)))

    def inputs(self, stage: int) -> None:
        batch = self._take("backward", stage)
        self.actions.append(Action(Kind.INPUTS, stage, batch))
        self.waiting.append((stage, batch))

    def weights(self) -> None:
        """Compute the gradients of weights that wait longest, if any do."""
        if self.waiting:
            self.actions.append(Action(Kind.WEIGHTS, *self.waiting.popleft()))

    def weights_of(self, stage: int) -> None:
        """Compute those of one stage that wait longest."""
        own = next(entry for entry in self.waiting if entry[0] == stage)
        self.waiting.remove(own)
        self.actions.append(Action(Kind.WEIGHTS, *own))

    def apart(self, stage: int) -> None:
        """Compute the gradients of inputs, and then those of weights."""
        self.inputs(stage)
        self.weights_of(stage)

    def last_weights(self, stage: int) -> None:
        """Compute the gradients of one stage's weights that are left."""
        while any(entry[0] == stage for entry in self.waiting):
            self.weights_of(stage)

    def forwards(self, stage: int) -> int:
        """Return how many micro-batches ran forward."""
        return self._next["forward", stage]

    def _take(self, kind: str, stage: int) -> int:
        batch = self._next[kind, stage]
        self._next[kind, stage] = batch + 1
        return batch


def _all_at_once(pp: int, rank: int, chunks: int, batches: int, *, last_first: bool = True) -> list[Action]:
    """Return all forwards, stage by stage, then all backwards; LoopedBFS's from the last micro-batch on."""
    stages = range(rank, pp * chunks, pp)
    back = range(batches - 1, -1, -1) if last_first else range(batches)
    forwards = [Action(Kind.FORWARD, stage, batch) for stage in stages for batch in range(batches)]
    return forwards + [Action(Kind.BACKWARD, stage, batch) for stage in reversed(stages) for batch in back]


def _one_f_one_b(pp: int, rank: int, batches: int) -> list[Action]:
    """Return forwards until the last stage has one, then a backward and a forward in turn."""
    made = _Sequence()
    ahead = min(batches, pp - rank)
    for _ in range(ahead):
        made.forward(rank)
    for _ in range(batches - ahead):
        made.backward(rank)
        made.forward(rank)
    for _ in range(ahead):
        made.backward(rank)
    return made.actions


def _turns(pp: int, rank: int, chunks: int, batches: int, hop: int) -> tuple[list[int], list[int], int]:
    """Return the stages of a rank's forwards and backwards, and how many forwards come first.

    Chunks take turns, each for a round of micro-batches. ``hop`` more come first for each rank behind.
    """
    each = batches // max(1, batches // pp)
    forwards = [pp * (place // each % chunks) + rank for place in range(chunks * batches)]
    backwards = [pp * (chunks - 1) + 2 * rank - stage for stage in forwards]
    return forwards, backwards, min((chunks - 1) * each + hop * (pp - 1 - rank), chunks * batches)


def _interleaved(pp: int, rank: int, chunks: int, batches: int, *, split: bool = False) -> list[Action]:
    """Return Megatron-LM's order: chunks in turn, a forward before each backward (arXiv:2104.04473).

    With backward ``split``, weights come as many actions later as the rank has ranks before it.
    """
    made = _Sequence()
    forwards, backwards, ahead = _turns(pp, rank, chunks, batches, hop=1 if split else 2)
    for stage in forwards[:ahead]:
        made.forward(stage)
    for place, stage in enumerate(backwards):
        if ahead + place < len(forwards):
            made.forward(forwards[ahead + place])
        (made.inputs if split else made.backward)(stage)
        if place >= rank:
            made.weights()
    while made.waiting:
        made.weights()
    return made.actions


def _zbv(pp: int, rank: int, batches: int) -> list[Action]:
    """Return the order of ZBV (arXiv:2401.10241, section 6): the chain runs down the ranks and up again.

    The order is that of enough micro-batches to fill the pipeline, without those that a step has not.
    """
    made, down, up = _Sequence(), rank, 2 * pp - 1 - rank
    most = max(2 * pp - 1, batches)
    for _ in range(2 * (pp - rank) - 1):
        made.forward(down)
    for _ in range(rank):
        made.forward(up)
        made.forward(down)
    for _ in range(pp - rank):
        made.forward(up)
        made.apart(up)
    while made.forwards(up) < most:
        if made.forwards(down) < most:
            made.forward(down)
        made.apart(down)
        made.forward(up)
        made.apart(up)
    for _ in range(rank):
        made.inputs(down)
        made.inputs(up)
    for _ in range(pp - rank):
        made.apart(down)
    made.last_weights(up)
    made.last_weights(down)
    return [action for action in made.actions if action.micro_batch < batches]


def _dual_pipe_v(pp: int, rank: int, batches: int) -> list[Action]:
    """Return the order of DualPipeV, https://github.com/deepseek-ai/DualPipe, whose chain is bent as well.

    Of a forward and a backward that may run at once torch computes the forward first, as no stage of ours
    tells it how to overlap them.
    """
    made, down, up = _Sequence(), rank, 2 * pp - 1 - rank
    behind = pp - rank - 1
    for _ in range(2 * behind):
        made.forward(down)
    for _ in range(rank + 1):
        made.forward(down)
        made.forward(up)
    for _ in range(behind):
        made.inputs(up)
        made.weights()
        made.forward(up)
    for _ in range(batches - 2 * pp + rank + 1):
        made.forward(down)
        made.backward(up)
        made.forward(up)
        made.backward(down)
    for _ in range(behind):
        made.backward(up)
        made.forward(up)
        made.backward(down)
    last = rank + 1
    # of the last backwards the second half is split; between which of a pair hangs on the rank
    first_split = 2 * (last // 2) + (0 if rank % 2 else 1)
    for place in range(2 * last):
        stage = down if place % 2 else up
        (made.inputs if place >= first_split else made.backward)(stage)
    for _ in range(behind):
        made.weights()
        (made.inputs if 2 * last > first_split else made.backward)(down)
    for _ in range(last):
        made.weights()
    return made.actions
