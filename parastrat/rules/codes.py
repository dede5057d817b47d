"""Codes of rules as people write them: whole ones, the beginning of a family's, and mistyped ones."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_GUESSES = 3
_NUMBER = re.compile(r"PS(\d)\d*")
#: letters that are written for digits
_MISTAKEN = str.maketrans("OIL", "011")
_FAMILY = re.compile(r"(PS\d)XX")


def code_prefix(written: str) -> str:
    """Return what the codes begin with that somebody names: PS201, ``PS2`` or ``PS2xx``, PS for all."""
    code = written.upper()
    family = _FAMILY.fullmatch(code)
    return family[1] if family else code


def nearest_codes(code: str, codes: Sequence[str]) -> tuple[str, ...]:
    """Return codes of the same family, nearest number first; else those that are written alike."""
    code = code[:2].upper() + code[2:].upper().translate(_MISTAKEN)
    number = _NUMBER.fullmatch(code)
    kin = [known for known in codes if number and known.startswith(f"PS{number[1]}")]
    if kin:
        return tuple(sorted(kin, key=lambda known: abs(int(known[2:]) - int(code[2:])))[:_MOST_GUESSES])
    return tuple(get_close_matches(code, codes, n=_MOST_GUESSES, cutoff=0.5))
