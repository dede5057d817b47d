"""What emitters return."""

from __future__ import annotations

from dataclasses import dataclass

from parastrat.errors import ParastratError


class EmitError(ParastratError):
    """A plan that a target cannot express."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """A file that nobody has written yet."""

    #: relative to the folder that the user names
    path: str
    text: str
    executable: bool = False
