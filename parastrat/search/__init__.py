"""The best plan on every rung of the ladder, and the rung to stand on."""

from parastrat.search.choice import find_plan
from parastrat.search.front import memory_front
from parastrat.search.ladder import RUNG_STRATEGIES
from parastrat.search.otherwise import with_others
from parastrat.search.recommended import recommendation
from parastrat.search.rows import Constraints

__all__ = ["RUNG_STRATEGIES", "Constraints", "find_plan", "memory_front", "recommendation", "with_others"]
