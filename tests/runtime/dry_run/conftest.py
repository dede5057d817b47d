"""Processes of dry runs are copies of the one that ranks of other tests are copies of."""

from __future__ import annotations

from runtime.ranks import preload

preload()
