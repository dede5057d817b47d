"""What ranks hold of each virtual stage, beside the orders of their actions walked through one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest

from parastrat.plan import PipelineSchedule
from parastrat.ranks.firsts import begun
from parastrat.ranks.flights import Flights, looped, turns, v_shaped
from parastrat.schedules import V_SHAPED
from parastrat.timeline.kinds import Kind
from parastrat.timeline.orders import Action, orders

LOOPED = [
    (schedule, pp, chunks)
    for schedule, pp, chunks in product(
        (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE), (2, 3, 4, 7, 8), (2, 3, 4)
    )
]
BENT = [(schedule, pp, 2) for schedule, pp in product(sorted(V_SHAPED), (2, 3, 4, 7, 8))]


def walked(
    actions: tuple[Action, ...], rank: int, pp: int, chunks: int, *, is_bent: bool
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield what is held and what waits as each backward begins, and of which virtual stage that is."""
    own = (rank, 2 * pp - 1 - rank) if is_bent else tuple(rank + pp * chunk for chunk in range(chunks))
    alive, awaited = np.zeros(chunks, dtype=int), np.zeros(chunks, dtype=int)
    for action in actions:
        chunk = own.index(action.stage)
        if action.kind is Kind.FORWARD:
            alive[chunk] += 1
        elif action.kind is Kind.BACKWARD:
            yield alive.copy(), awaited.copy(), chunk
            alive[chunk] -= 1
        elif action.kind is Kind.INPUTS:
            yield alive.copy(), awaited.copy(), chunk
            awaited[chunk] += 1
        else:
            alive[chunk] -= 1
            awaited[chunk] -= 1


def flown(schedule: PipelineSchedule, pp: int, chunks: int, *, few: bool) -> Flights:
    if schedule in V_SHAPED:
        return v_shaped(pp, split=schedule is PipelineSchedule.ZBV, few=few)
    split = schedule is PipelineSchedule.INTERLEAVED_ZERO_BUBBLE
    return looped(pp, chunks, split=split, few=few)


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(("schedule", "pp", "chunks"), LOOPED + BENT)
def test_a_rank_begins_its_first_backward_at_the_first_moment(
    schedule: PipelineSchedule, pp: int, chunks: int, *, few: bool
) -> None:
    found, bent = flown(schedule, pp, chunks, few=few), schedule in V_SHAPED
    split = schedule in (PipelineSchedule.ZBV, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)
    for rank in range(pp):
        alive, running = begun((pp, chunks), rank, is_bent=bent, way=(few, split))
        assert (alive, running) == (found.alive[rank, 0].tolist(), found.running[rank, 0])


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize(("schedule", "pp", "chunks"), LOOPED + BENT)
def test_no_rank_holds_more_and_each_holds_as_much(
    schedule: PipelineSchedule, pp: int, chunks: int, *, few: bool
) -> None:
    splits = schedule is not PipelineSchedule.DUAL_PIPE_V
    if few and not splits:
        return  # it takes no fewer than two micro-batches for each rank
    found, draw = flown(schedule, pp, chunks, few=few), np.random.default_rng(0)
    for rank, actions in enumerate(orders(schedule, pp, chunks, pp if few else 4 * pp)):
        moments = list(walked(actions, rank, pp, chunks, is_bent=schedule in V_SHAPED))
        for _ in range(20):
            kept, waits = draw.random(chunks), draw.random(chunks) * splits
            most = max(float(alive @ kept + awaited @ waits) for alive, awaited, _ in moments)
            told = found.alive[rank] @ kept + found.awaited[rank] @ waits
            assert told.max() == pytest.approx(most)
        # and while a chunk runs, as much of each
        for chunk in range(chunks):
            own = [alive for alive, _, running in moments if running == chunk]
            told = found.alive[rank][found.running[rank] == chunk]
            assert told.max(axis=0).tolist() == np.array(own).max(axis=0).tolist()


def test_kinds_are_held_as_often_as_their_chunks() -> None:
    # three layers on the first rank, one and two, and an embedding; two on the last, and a head
    held = np.array([[[1, 1, 0], [0, 1, 0]], [[0, 2, 0], [0, 1, 1]]])
    ways = np.array([[0, 1, 1, 0, 0, 0], [9, 1, 9, 0, 0, 0]])
    found, _ = turns(held, np.eye(3, dtype=bool), ways, [[0], [1]], is_bent=False, split=False)
    # as the second chunk runs backward, three of the first and two of it: seven layers; as many are there
    # as the first one does, but for the one that then ran
    (embedding, layer, head), (_, other, _), first = found.at_kinds[..., :3, :].tolist()
    assert [row[0] for row in layer] == [3, 7, 0]
    assert [row[0] for row in embedding] == [3, 6, 0]
    # on the last rank the head is gone when its layer runs, beside two of the first chunk
    assert [row[1] for row in layer] == [0, 3, 0]
    assert [row[1] for row in head] == [0, 3, 1]
    # an embedding that weighs more than layers has four, when there are fewer layers
    assert [row[0] for row in other] == [4, 6, 0]
    # as the first backward begins, which is of the second chunk, that has no embedding
    assert [[row[0] for row in kind] for kind in first] == [[0, 0, 0], [3, 7, 0], [0, 0, 0]]
    # behind the first chunk's backward
    assert found.ending[0, :3, 0].tolist() == [2, 6, 0]


def test_the_most_of_equal_ranks_is_told() -> None:
    held, ways = np.ones((2, 4, 1)), np.array([[1, 1]])
    one = np.ones((1, 1), dtype=bool)
    alone, _ = turns(held, one, ways, [[rank] for rank in range(4)], is_bent=False, split=True)
    both, _ = turns(held, one, ways, [[0, 1, 2, 3]], is_bent=False, split=True)
    # all have as many alive; for weights waits one chunk of each rank before, and the one that runs
    assert alone.at_kinds[0, 0].tolist() == [[8, 8, 8, 8], [1, 2, 3, 4]]
    assert both.at_kinds[0, 0].tolist() == [[8], [4]]


@pytest.mark.parametrize(("pp", "chunks"), [(4, 3), (7, 2), (2, 5)])
def test_equal_chunks_are_held_as_in_the_mean(pp: int, chunks: int) -> None:
    held, ranks = np.full((chunks, pp, 1), 2), [[rank] for rank in range(pp)]
    one, ways = np.ones((1, 1), dtype=bool), np.array([[1, 1]])
    found, _ = turns(held, one, ways, ranks, is_bent=False, split=False)
    alive = [2 * ((chunks - 1) * pp + 2 * (pp - 1 - rank) + 1) for rank in range(pp)]
    assert found.at_kinds[0, 0, 0].tolist() == alive
    assert found.ending[0, 0].tolist() == [each - 2 for each in alive]


def test_what_ran_waits_and_a_heads_loss_is_gone_behind_it() -> None:
    # two layers and a head on the last of four ranks; a head waits with less than it keeps
    held = np.zeros((1, 4, 2))
    held[0, :, 0], held[0, 3, 1] = 2, 1
    ways = np.array([[1.0, 4.0, 0.5, -2.0]])
    found, _ = turns(held, np.eye(2, dtype=bool), ways, [[0], [1], [2], [3]], is_bent=False, split=True)
    layer, head = found.at_kinds[0, :, :, 3]
    # of four micro-batches three wait, and as the last layer runs all of the fourth
    assert layer.tolist() == [8, 4, 8, 4]
    assert head.tolist() == [8, 4, 8, 3]
