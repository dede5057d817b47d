from __future__ import annotations

import numpy as np
from chains import decoder

from parastrat.columns import Columns
from parastrat.ranks import block_kinds, pipeline_ranks
from parastrat.ranks.heaviest import heavy_ranks


def pipelines(*shapes: tuple[int, int]) -> Columns:
    """Return plans of so many stages of a rank on so many ranks, whose chains do not bend."""
    pp, chunks = np.array(shapes).T
    return Columns({"pp": pp, "virtual_stages": chunks, "pp_schedule": np.zeros(len(shapes), dtype=int)})


def test_it_is_the_rank_with_most_of_what_takes_longest() -> None:
    model = decoder(6, 0.01)
    kinds = block_kinds(model).blocks
    columns = Columns(
        {
            "pp": np.array([1, 4, 4]),
            "virtual_stages": np.array([1, 1, 2]),
            "pp_schedule": np.array([-1, 0, 2]),
        }
    )
    for shares in np.eye(len(kinds)):
        ranks = heavy_ranks(model, columns, shares)
        of_plans = np.stack(ranks.repeats_of(columns))[:, 0].T @ shares
        for plan, most in enumerate(of_plans):
            shape = int(columns.pp[plan]), int(columns.virtual_stages[plan])
            assert most == max(np.dot(rank.repeats, shares) for rank in pipeline_ranks(model, *shape))


def test_a_mesh_holds_the_least_that_any_of_its_pipelines_may() -> None:
    model = decoder(6, 0.01)
    columns = Columns(
        {
            "pp": np.array([4, 1, 4]),
            "virtual_stages": np.array([1, 1, 2]),
            "pp_schedule": np.array([0, -1, 2]),
        }
    )
    ranks = heavy_ranks(model, columns, np.ones(len(block_kinds(model).blocks)))
    least, of_plans = ranks.least_of(columns), np.stack(ranks.repeats_of(columns))[:, 0]
    assert ranks.stages.tolist() == [1, 4]
    assert len(ranks.several) == 2
    assert np.stack(least.repeats)[:, 0].tolist() == of_plans[:, [0, 2]].min(axis=1).tolist()
    assert np.stack(least.repeats)[:, 1].tolist() == of_plans[:, 1].tolist()
