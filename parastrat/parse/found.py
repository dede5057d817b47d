"""What was read of a launch script so far, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parastrat.parse.shell_values import ShellValues

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class Found:
    """What a script, or one of its launches, states, by tables and names; and where."""

    table: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: each launch's own
    launches: list[Found] = field(default_factory=list)
    #: those that start ranks themselves
    starts: list[Found] = field(default_factory=list)
    #: tables of launches that run in the background of the shell
    running: list[dict[str, Any]] = field(default_factory=list)
    #: whether lines are of a function, which runs where it is called
    in_function: bool = False
    #: what is known of each launcher's options, by its table
    known: Mapping[str, Any] = field(default_factory=dict)
    #: whether words are of a text that another shell reads, which expands them where it runs
    in_shell: bool = False
    #: what its variables hold so far
    values: ShellValues = field(default_factory=ShellValues)
    #: the line that is read, with what is known put in
    line: str = ""

    def note(self, section: str, name: str, value: str, line: int) -> None:
        """Put a value into a table, with the line that it stands on."""
        self.table.setdefault(section, {})[name] = value
        self.positions.setdefault(section, (line, 1))
        self.positions[f"{section}.{name}"] = (line, 1)
