"""What would be recommended otherwise: on another network, for another batch, with freed memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.search.otherwise.applied import applied_instead
from parastrat.search.otherwise.chunked import chunked_loss
from parastrat.search.otherwise.compiled import compiled_blocks
from parastrat.search.otherwise.doubted import network_doubt
from parastrat.search.otherwise.nearby import nearby_batch
from parastrat.search.otherwise.offloaded import offloaded_plan

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.result import SearchResult
    from parastrat.search.rows import Constraints


def with_others(result: SearchResult, fixed: Constraints, compiled: Facts | None) -> SearchResult:
    """Return a recommendation with what other questions about its job would be answered.

    Args:
        result: as ``find_plan`` returned it.
        fixed: what the user settled beforehand.
        compiled: the job with torch.compile on every block; None where that is no question.
    """
    about = (fixed, result.chosen, result.tolerance)
    return replace(
        result,
        network_doubt=network_doubt(result.facts, *about),
        nearby_batch=nearby_batch(result.facts, *about),
        chunked_loss=chunked_loss(result.facts, *about),
        compiled=compiled_blocks(compiled, *about),
        offloaded=offloaded_plan(result.facts, *about),
        applied=applied_instead(result.facts, *about),
    )
