from __future__ import annotations

import random
from dataclasses import replace

from chains import block, chain, decoder
from hypothesis import given
from hypothesis import strategies as st

from parastrat.ranks.stages import cut, cut_chain
from parastrat.stage_load import StageLoad


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


def test_pairs_that_a_mask_hides_count_where_they_are_computed() -> None:
    table, layers, end = chain(
        block("table", 1, 0.0, unit=False), block("layers", 4, 1.0), block("head", 1, 2.0, unit=False)
    ).blocks
    model = chain(table, layers, end)
    assert [stage[1] for stage in cut(model, 2)] == [3, 1]
    # against layers that run all pairs the head weighs less
    masked = replace(layers, hidden_flops=10 * layers.flops)
    assert [stage[1] for stage in cut(chain(table, masked, end), 2)] == [2, 2]


def test_megatron_puts_equally_many_layers_on_each_stage_where_they_divide() -> None:
    # whatever the head weighs: get_num_layers_to_build divides layers by stages
    model = replace(decoder(32, 2.0), stage_load=StageLoad.LAYERS)
    assert cut(model, 4) == ((1, 8, 0), (0, 8, 0), (0, 8, 0), (0, 8, 1))
    # 126 layers on 16 stages need a layout of the user's own, which is alike in FLOPs
    other = decoder(126, 0.66)
    assert cut(replace(other, stage_load=StageLoad.LAYERS), 16) == cut(other, 16)


def test_ends_may_count_as_layers() -> None:
    # 70 layers on 12 stages do not divide, with both ends they do: bigscience train/tr11-176B-ml
    model = replace(decoder(70, 2.0), stage_load=StageLoad.BLOCKS)
    assert cut(model, 12) == ((1, 5, 0), *((0, 6, 0),) * 10, (0, 5, 1))


@given(st.integers(1, 60), st.floats(0, 5), st.integers(1, 70))
def test_a_cut_loses_nothing_and_keeps_the_order(layers: int, head: float, stages: int) -> None:
    model = decoder(layers, head)
    pieces = cut(model, stages)
    assert len(pieces) == stages
    assert [sum(column) for column in zip(*pieces, strict=True)] == [1, layers, 1]
    held = [number for stage in pieces for number, count in enumerate(stage) for _ in range(count)]
    assert held == sorted(held)


def test_a_norm_stays_with_the_head_that_reads_it() -> None:
    assert cut_chain([0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.5], 4) == [0, 0, 1, 2, 2, 3, 3]
    assert cut_chain([0.0, 0.0, 0.0, 1.0], 2) == [0, 1, 1, 1]


def test_stages_are_filled_from_the_end_to_the_mean_of_what_is_left() -> None:
    draw = random.Random(0)  # noqa: S311 - the same draw each time
    # which stages the others need decides in few of them
    for _ in range(1500):
        # in sixteenths, whose sums are exact
        flops = [draw.randint(0, 9) / 16 for _ in range(draw.randint(1, 14))]
        stages = draw.randint(1, 8)
        assert cut_chain(flops, stages) == filled_from_the_end(flops, stages), (flops, stages)


def filled_from_the_end(flops: list[float], stages: int) -> list[int]:
    limit = best_by_dynamic_programming(flops, stages)
    left, places = list(flops), []
    for stage in reversed(range(stages)):
        load, mean = 0.0, sum(left) / (stage + 1)
        while left:
            full = load > 0 and load + left[-1] > limit
            # what computes nothing stays with what reads it
            even = (
                left[-1] > 0
                and load > 0
                and load >= mean
                and best_by_dynamic_programming(left, stage) <= limit
            )
            begun = bool(places) and places[-1] == stage
            if stage > 0 and begun and (full or even or len(left) <= stage):
                break
            load += left.pop()
            places.append(stage)
    return places[::-1]


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
