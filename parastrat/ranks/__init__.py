"""What ranks hold: how a model's chain is cut over a pipeline, and the states of what each rank has."""

from parastrat.ranks.load import (
    ParameterTotals,
    RankLoad,
    block_kinds,
    mean_ranks,
    pipeline_ranks,
    rank_columns,
    whole_model,
)

__all__ = [
    "ParameterTotals",
    "RankLoad",
    "block_kinds",
    "mean_ranks",
    "pipeline_ranks",
    "rank_columns",
    "whole_model",
]
