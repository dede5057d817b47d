"""Options that begin with something else than two hyphens, as they were meant."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from parastrat.parse.key_names import full_name

if TYPE_CHECKING:
    from collections.abc import Mapping

#: what text processors make of hyphens
_DASHED = re.compile("-?([\u2010-\u2015\u2212])[-\u2010-\u2015\u2212]?(?=[A-Za-z])")
#: an option of several letters behind one hyphen
_ONE = re.compile("(-)(?=(?P<name>[A-Za-z][A-Za-z_-]{2,})(?:=|$))")


def as_meant(word: str, entry: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return an option with two hyphens, and the dash that it begins with instead; None of other words.

    Args:
        word: of a command line.
        entry: what is known of the command's options.
    """
    found = _DASHED.match(word) or _one_hyphen(word, entry)
    return (word, None) if found is None else ("--" + word[found.end() :], found[1])


def _one_hyphen(word: str, entry: Mapping[str, Any]) -> re.Match[str] | None:
    """Return the hyphen of an option that is to have two; None for a letter, and for other words."""
    found = _ONE.match(word)
    name = "" if found is None else found["name"]
    if entry.get("separator"):
        name = re.sub("[-_]", entry["separator"], name)
    is_known = full_name(name, entry, {}) in entry["keys"] and name not in entry["short"]
    return found if name and is_known else None
