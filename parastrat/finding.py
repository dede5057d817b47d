"""What a rule says about a case."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    #: the plan cannot run or would train something else; search rejects it
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A rule that fired, before it is joined with the rule's own facts."""

    #: states this case's numbers
    message: str
    #: imperative
    fix: str
    #: dotted key of the file that it is about; None: of no single one
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A hit with its rule's code; ``path``, ``line`` and ``column`` only for files."""

    code: str
    severity: Severity
    message: str
    fix: str
    url: str
    path: str | None = None
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """Findings of one rule that somebody left out, and why."""

    code: str
    count: int
    reason: str
    #: the file that says so, or the flag
    stated_in: str
