"""The best plan on every rung of the ladder, and the rung to stand on."""

from parastrat.search.applied import applied_instead
from parastrat.search.choice import find_plan
from parastrat.search.chunked import chunked_loss
from parastrat.search.compiled import compiled_blocks
from parastrat.search.doubted import network_doubt
from parastrat.search.front import memory_front
from parastrat.search.ladder import RUNG_STRATEGIES
from parastrat.search.nearby import nearby_batch
from parastrat.search.offloaded import offloaded_plan
from parastrat.search.rows import Constraints

__all__ = [
    "RUNG_STRATEGIES",
    "Constraints",
    "applied_instead",
    "chunked_loss",
    "compiled_blocks",
    "find_plan",
    "memory_front",
    "nearby_batch",
    "network_doubt",
    "offloaded_plan",
]
