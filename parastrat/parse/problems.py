"""What is wrong in a file, gathered, then raised as one error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parastrat.errors import PlanFileError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: problems that one message spells out; more would bury the first
_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file."""

    #: dotted key
    key: str
    #: completes a sentence that begins with the key, or with what a reader of the file calls it
    text: str
    #: the mend, imperative
    hint: str
    #: line and column, both from 1; None for what concerns the whole file
    position: tuple[int, int] | None = None
    #: of the rule that explains it
    code: str = "PS602"
    #: what a reader of the file calls the key, if not by its dotted name
    name: str = ""

    @property
    def message(self) -> str:
        """The sentence."""
        subject = self.name or self.key
        return f"{subject} {self.text}" if subject else self.text


class MalformedPlanError(PlanFileError):
    """A plan file with wrong keys or values; ``problems`` lists all of them in the file's order."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        super().__init__(problem_lines(path, problems), hint=problems[0].hint)
        self.problems = tuple(problems)


class PlanSyntaxError(PlanFileError):
    """A plan file that is not TOML; ``position`` is a line and a column, both from 1."""

    def __init__(self, path: Path, reason: str, position: tuple[int, int]) -> None:
        line, column = position
        hint = "mend the line; text stands in quotes"
        super().__init__(f"{path}, line {line}, column {column}: not TOML: {reason}", hint=hint)
        self.reason, self.position = f"not TOML: {reason}", position


def located(problem: Problem, positions: Mapping[str, tuple[int, int]]) -> Problem:
    """Return the problem with the position of its key, or of the nearest table around it."""
    key = problem.key
    while key not in positions and "." in key:
        key = key.rpartition(".")[0]
    return replace(problem, position=positions.get(key))


def raise_problems(
    path: Path, problems: Sequence[Problem], positions: Mapping[str, tuple[int, int]]
) -> None:
    """Raise what was found, in the file's order; return when nothing was.

    Raises:
        MalformedPlanError: for one problem or more.
    """
    if problems:
        placed = [located(problem, positions) for problem in problems]
        raise MalformedPlanError(path, sorted(placed, key=lambda found: found.position or (0, 0)))


def problem_lines(path: Path, problems: Sequence[Problem]) -> str:
    """Return the first problems, one a line."""
    lines = [_line(path, problem) for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    return "\n".join(lines)


def _line(path: Path, problem: Problem) -> str:
    place = f"{path}, line {problem.position[0]}" if problem.position else str(path)
    return f"{place}: {problem.message}"
