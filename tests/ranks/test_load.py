from __future__ import annotations

import numpy as np
import pytest
from chains import block, chain, decoder

from parastrat.columns import Columns
from parastrat.model import Parameters, Split
from parastrat.ranks import ParameterTotals, RankLoad, mean_ranks, pipeline_ranks, rank_columns
from parastrat.ranks.stages import cut_chain
from parastrat.sources.presets import load_preset
from parastrat.stack import Kernels
from parastrat.workload import Precision

DIVIDED = ("replicated", "tensor", "expert")


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


def test_experts_are_counted_apart_whether_they_train_or_not() -> None:
    experts = Parameters(trainable=7, frozen=11, split=Split.EXPERT)
    load = pipeline_ranks(chain(block("layer", 2, 1.0, experts)), 1, 1)[0]
    assert (load.trainable, load.frozen) == (ParameterTotals(expert=14), ParameterTotals(expert=22))
    assert load.root == ParameterTotals()


def test_a_pipeline_has_its_own_ranks_whatever_was_cut_before() -> None:
    model = decoder(32, 0.01)
    assert [len(pipeline_ranks(model, pp, 1)) for pp in (8, 2, 1)] == [3, 2, 1]


def test_the_mean_rank_is_the_mean_of_all_where_nothing_is_outside_units() -> None:
    layer = block(
        "layer", 12, 1.0, Parameters(trainable=10, frozen=4), Parameters(trainable=6, tie_group="t")
    )
    model = chain(layer)
    columns = Columns({"pp": np.array([1, 2, 4, 12]), "virtual_stages": np.ones(4, dtype=int)})
    mean = mean_ranks(model, columns)
    # what is tied stands once on every rank: the mean is less
    assert mean.trainable.replicated.tolist() == [126, 63, 31.5, 10.5]
    assert mean.frozen.replicated.tolist() == [48, 24, 12, 4]
    assert [repeats.tolist() for repeats in mean.repeats] == [[12, 6, 3, 1]]
    assert mean.rank.tolist() == [0, 0, 0, 0]


def test_the_mean_rank_has_the_root_only_where_there_is_one_rank() -> None:
    columns = Columns({"pp": np.array([1, 2]), "virtual_stages": np.ones(2, dtype=int)})
    whole = pipeline_ranks(decoder(4, 0.01), 1, 1)[0]
    assert mean_ranks(decoder(4, 0.01), columns).root.total.tolist() == [whole.root.total, 0]


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
            "pp_schedule": np.full(len(shapes), -1),
        }
    )
    ranks = rank_columns(model, columns)
    own = [pipeline_ranks(model, *shape) for shape in shapes]
    assert len(ranks.rank) == max(len(loads) for loads in own)
    for plan, loads in enumerate(own):
        for place in range(len(ranks.rank)):
            # a plan with fewer distinct ranks has its last one again
            assert numbers_of(ranks, (place, plan)) == numbers_of(loads[min(place, len(loads) - 1)], ())


def numbers_of(load: RankLoad, plan: tuple[int, ...]) -> list[float]:
    totals = [getattr(load, part) for part in ("trainable", "frozen", "root")]
    columns = [load.rank, *load.repeats, *(getattr(each, by) for each in totals for by in DIVIDED)]
    # what a model has none of is one number
    return [float(column if np.ndim(column) == 0 else np.asarray(column)[plan]) for column in columns]


def test_no_plans_have_no_ranks() -> None:
    nothing = np.array([], dtype=int)
    columns = Columns({"pp": nothing, "virtual_stages": nothing, "pp_schedule": nothing})
    assert rank_columns(decoder(4, 1.0), columns).rank.size == 0


def test_pipelines_of_as_many_stages_are_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[int] = []

    def counted(flops: list[float], stages: int) -> list[int]:
        cut.append(stages)
        return cut_chain(flops, stages)

    monkeypatch.setattr("parastrat.ranks.pipelines.cut_chain", counted)
    model = decoder(16, 0.01)
    alike = [pipeline_ranks(model, *shape) for shape in ((8, 1), (4, 2), (2, 4))]
    assert cut == [8]
    assert [len(ranks) for ranks in alike] == [3, 3, 2]


def test_a_bent_chain_ends_where_it_begins() -> None:
    source = load_preset("llama-3.2-1b")
    assert source is not None
    model = source.at(64, Precision.FP32, Kernels.EAGER)
    looped, bent = (pipeline_ranks(model, 2, 2, bent=way) for way in (False, True))
    # embedding, layers, head
    assert [[bool(count) for count in rank.repeats] for rank in looped] == [[1, 1, 0], [0, 1, 1]]
    assert [[bool(count) for count in rank.repeats] for rank in bent] == [[1, 1, 1], [0, 1, 0]]
    # tied words are held once
    assert bent[0].trainable.total + bent[1].trainable.total == model.parameters
