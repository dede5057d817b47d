"""What a name that is unknown may mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: as many are proposed
_MOST = 3
#: those whose numbers are compared
_LOOKED_AT = 10
_NUMBER = re.compile(r"\d{2,}")
#: share of their letters that a mistyped name and what it means have in common: at half of them an apple
#: would be a p5e, at six in ten a tpu-v5e
_ALIKE = 0.7
#: with fewer letters every other name begins, and of fewer every other has a part
_LEAST_BEGINNING, _LEAST_PART = 2, 3


def nearest(name: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return up to three names that begin with an unknown one, are like it, or share a part with it."""
    lower = name.lower()
    known = {candidate.lower(): candidate for candidate in sorted(names)}
    begun = [each for each in known if len(lower) >= _LEAST_BEGINNING and each.startswith(lower)]
    parts = [each for each in known if _is_part(*sorted((lower, each), key=len))]
    found = [*_like(lower, begun, 0), *_like(lower, known, _ALIKE), *_like(lower, parts, 0)]
    # another number is another product: an h100-sxm is no h200-sxm, however alike
    numbers = set(_NUMBER.findall(lower))
    numbered = [match for match in found if numbers <= set(_NUMBER.findall(match))]
    return tuple(known[match] for match in list(dict.fromkeys(numbered or found))[:_MOST])


def _like(name: str, several: Iterable[str], share: float) -> list[str]:
    """Return those of several names that have so great a share of their letters in common with one."""
    import difflib  # noqa: PLC0415 - only errors need it

    return difflib.get_close_matches(name, several, n=_LOOKED_AT, cutoff=share)


def _is_part(shorter: str, longer: str) -> bool:
    return len(shorter) >= _LEAST_PART and shorter in longer


def joined(name: str) -> str:
    """Return a name without what may stand between its words."""
    return re.sub(r"[-_ ]", "", name)
