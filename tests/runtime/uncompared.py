"""Models whose ranks are not compared as they train, where tests look at what else ranks send."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch


def uncompared() -> AbstractContextManager[Any]:
    """Wrap models inside without what compares their ranks behind backwards."""
    return patch("parastrat.runtime.training.guards.compare_ranks")
