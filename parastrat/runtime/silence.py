"""What torch says in pages, and parastrat in a sentence."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

#: logs the whole traceback of what cannot be computed, before it raises
FAKE_TENSORS = "torch._subclasses.fake_tensor"
#: asks for the user's code where a forward chooses by values
_SYMBOLS = "torch.fx.experimental.symbolic_shapes"
#: of RNNs, whose own forward assigns the weights that it reads
_ASSIGNED = "The tensor attributes? .* assigned during export"


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


@contextmanager
def quiet_export() -> Iterator[None]:
    """Let torch.export log, warn and print nothing: it prints the graph that it has as it raises."""
    with (
        silenced(FAKE_TENSORS),
        silenced(_SYMBOLS),
        warnings.catch_warnings(),
        redirect_stderr(io.StringIO()),
    ):
        warnings.filterwarnings("ignore", message=_ASSIGNED)
        yield


@contextmanager
def quiet_alone() -> Iterator[None]:
    """Drop torch's remark that there is one process: that is known here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninit")
        yield


@contextmanager
def prints_aside() -> Iterator[None]:
    """Let what a module's own code prints come on stderr: stdout has the report, or its JSON."""
    with redirect_stdout(sys.stderr):
        yield
