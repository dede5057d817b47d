"""Loops as people write them, for one process; each trains what it is given, wrapped or not."""

from runtime.loops import averages, optimizers, scripts
from runtime.loops.setting import PLANS, RECIPES, Setting

__all__ = ["PLANS", "RECIPES", "Setting", "averages", "optimizers", "scripts"]
