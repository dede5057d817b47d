from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parastrat.columns import Columns
from parastrat.model import (
    Activations,
    Block,
    Family,
    ModelSpec,
    Operator,
    OperatorKind,
    Parameters,
    Saved,
    Split,
)
from parastrat.stages import ParameterTotals, cut, pipeline_ranks, rank_columns
from parastrat.workload import Precision

NOTHING = Activations(none=Saved(), attention=Saved(), selective=Saved(), full=Saved())


def block(name: str, repeat: int, flops: float, *groups: Parameters, unit: bool = True) -> Block:
    matmul = Operator(kind=OperatorKind.MATMUL, flops=flops, bytes=0)
    return Block(
        name=name,
        repeat=repeat,
        parameters=groups,
        operators=(matmul,),
        activations=NOTHING,
        working=Saved(),
        boundary_bytes=0,
        unit=unit,
    )


def chain(*blocks: Block) -> ModelSpec:
    return ModelSpec(
        ref="chain",
        name="chain",
        family=Family.DECODER,
        blocks=blocks,
        parameters=0,
        active_parameters=0,
        sequence_length=1,
        precision=Precision.FP32,
        causal=True,
        layers=sum(item.repeat for item in blocks),
    )


def decoder(layers: int, head_flops: float, *, tied: bool = False) -> ModelSpec:
    group = "embedding" if tied else None
    table = Parameters(trainable=100, split=Split.TENSOR, tie_group=group)
    return chain(
        block("embedding", 1, 0, table, unit=False),
        block("layer", layers, 1.0, Parameters(trainable=10, split=Split.TENSOR), Parameters(trainable=1)),
        block("head", 1, head_flops, table, unit=False),
    )


def test_equal_layers_are_cut_evenly() -> None:
    assert [stage[1] for stage in cut(decoder(32, 0.01), 4)] == [8, 8, 8, 8]


def test_llama_405b_is_cut_as_published() -> None:
    # 126 layers on 16 stages, one less on the first and the last: arXiv:2407.21783, section 3.3.2
    assert [stage[1] for stage in cut(decoder(126, 0.66), 16)] == [7] + [8] * 14 + [7]


def test_no_stage_is_left_without_what_the_others_could_spare() -> None:
    # a head as heavy as 2.4 layers: no stage can be lighter than five layers, and none needs more than that
    stages = cut(chain(block("layers", 32, 1.0), block("head", 1, 2.4, unit=False)), 8)
    assert [layers for layers, _ in stages] == [4, 4, 4, 4, 4, 5, 5, 2]


def test_a_heavy_head_gets_fewer_layers_beside_it() -> None:
    layers = [stage[1] for stage in cut(decoder(30, 2.0), 4)]
    assert layers[-1] == 6
    assert max(layers[:-1]) == 8


@given(st.integers(1, 60), st.floats(0, 5), st.integers(1, 70))
def test_a_cut_loses_nothing_and_keeps_the_order(layers: int, head: float, stages: int) -> None:
    model = decoder(layers, head)
    pieces = cut(model, stages)
    assert len(pieces) == stages
    assert [sum(column) for column in zip(*pieces, strict=True)] == [1, layers, 1]
    held = [number for stage in pieces for number, count in enumerate(stage) for _ in range(count)]
    assert held == sorted(held)


@given(st.integers(4, 60), st.floats(0, 3), st.integers(1, 4))
def test_no_cut_has_a_lighter_heaviest_stage(layers: int, head: float, stages: int) -> None:
    weights = [0.0] + [1.0] * layers + [head]
    heaviest = max(stage[1] + stage[2] * head for stage in cut(decoder(layers, head), stages))
    assert heaviest <= best_by_dynamic_programming(weights, stages) + 1e-3


def best_by_dynamic_programming(weights: list[float], stages: int) -> float:
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    best = list(sums)
    for _ in range(stages - 1):
        best = [
            min((max(best[cut_at], sums[end] - sums[cut_at]) for cut_at in range(end)), default=0.0)
            for end in range(len(sums))
        ]
    return best[-1]


def test_equal_ranks_are_told_once_and_the_first_stands_for_them() -> None:
    ranks = pipeline_ranks(decoder(32, 0.01), 8, 1)
    assert [(load.rank, load.repeats) for load in ranks] == [(0, (1, 4, 0)), (1, (0, 4, 0)), (7, (0, 4, 1))]


def test_ranks_of_alternating_layers_are_equal_where_their_kinds_are() -> None:
    dense, experts = (Parameters(trainable=count, split=Split.TENSOR) for count in (10, 30))
    alternating = (block(f"layer {index}", 1, 1.0, experts if index % 2 else dense) for index in range(16))
    ranks = pipeline_ranks(chain(*alternating), 4, 1)
    assert [(load.rank, load.trainable.total) for load in ranks] == [(0, 80)]


def test_virtual_stages_are_dealt_round_robin() -> None:
    ranks = pipeline_ranks(decoder(16, 0.01), 4, 2)
    assert ranks[0].repeats == (1, 4, 0)
    assert ranks[-1].repeats == (0, 4, 1)


@pytest.mark.parametrize(("pp", "held"), [(1, (100, 100)), (2, (100, 0))])
def test_tied_parameters_count_once_on_a_rank_and_again_on_another(pp: int, held: tuple[int, int]) -> None:
    ranks = pipeline_ranks(decoder(4, 0.01, tied=True), pp, 1)
    assert ranks[0].root.total == held[0]
    assert sum(load.root.total for load in ranks) == (100 if pp == 1 else 200)


def test_parameters_are_counted_by_what_divides_them() -> None:
    load = pipeline_ranks(decoder(4, 0.01), 1, 1)[0]
    assert (load.trainable.tensor, load.trainable.replicated, load.trainable.expert) == (240, 4, 0)


def test_frozen_and_sequence_split_parameters_are_counted_by_repeats() -> None:
    layer = block(
        "layer", 3, 1.0, Parameters(frozen=10), Parameters(trainable=5, split=Split.SEQUENCE), unit=False
    )
    load = pipeline_ranks(chain(layer), 1, 1)[0]
    assert (load.frozen, load.trainable) == (ParameterTotals(replicated=30), ParameterTotals(replicated=15))
    assert load.root == ParameterTotals(replicated=45)
    plain = pipeline_ranks(decoder(4, 0.01), 1, 1)[0]
    assert plain.frozen == ParameterTotals()


def test_totals_start_at_nothing_and_add_up() -> None:
    assert ParameterTotals().total == 0
    assert ParameterTotals(replicated=1, tensor=20, expert=300).total == 321


def test_ranks_of_many_plans_are_each_plans_own() -> None:
    model = decoder(96, 0.01)
    shapes = [(1, 1), (4, 2), (2, 1), (4, 2), (2, 40), (8, 1)]
    columns = Columns(
        {
            "pp": np.array([pp for pp, _ in shapes]),
            "virtual_stages": np.array([stages for _, stages in shapes]),
        }
    )
    ranks = rank_columns(model, columns)
    own = [pipeline_ranks(model, *shape) for shape in shapes]
    assert len(ranks.rank) == max(len(loads) for loads in own)
    for place in range(len(ranks.rank)):
        load = ranks.at(place)
        for plan, loads in enumerate(own):
            # a plan with fewer distinct ranks has its last one again
            expected = loads[min(place, len(loads) - 1)]
            assert load.rank[plan] == expected.rank
            assert tuple(counts[plan] for counts in load.repeats) == expected.repeats
            for part in ("trainable", "frozen", "root"):
                totals = getattr(load, part)
                found = (totals.replicated[plan], totals.tensor[plan], totals.expert[plan])
                wanted = getattr(expected, part)
                assert found == (wanted.replicated, wanted.tensor, wanted.expert)


def test_no_plans_have_no_ranks() -> None:
    nothing = np.array([], dtype=int)
    assert rank_columns(decoder(4, 1.0), Columns({"pp": nothing, "virtual_stages": nothing})).rank.size == 0
