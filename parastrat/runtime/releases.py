"""The releases of torch that were tried: wrapping a model rests on more than what torch promises."""

from __future__ import annotations

import re
import warnings

import torch

#: the last of them; pyproject.toml states the first, and no ceiling, so that nobody's torch is replaced
NEWEST = (2, 15)


def warn_of_untried() -> None:
    """Warn where torch is a later release than any that parastrat was tried with."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is not None and (int(found[1]), int(found[2])) > NEWEST:
        newest = ".".join(map(str, NEWEST))
        warnings.warn(
            f"parastrat was tried with torch up to {newest}, and this is {torch.__version__}: compare some "
            "losses with those of one process, or look for a newer parastrat",
            stacklevel=3,
        )
