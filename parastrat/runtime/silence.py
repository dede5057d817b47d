"""Loggers of torch that say in pages what parastrat says in a sentence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

#: logs the whole traceback of what cannot be computed, before it raises
FAKE_TENSORS = "torch._subclasses.fake_tensor"


@contextmanager
def silenced(prefix: str) -> Iterator[None]:
    """Let the loggers whose names begin so say nothing, as far as they are known now."""
    levels = {
        logger: logger.level
        for name, logger in list(logging.root.manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and name.startswith(prefix)
    }
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
