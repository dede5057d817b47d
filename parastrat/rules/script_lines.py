"""PS678, PS679: lines of a script that its shell takes for something else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_MANUAL = "https://www.gnu.org/software/bash/manual/bash.html"
_FORMAT = ConfigFormat.SCRIPT

#: an option, but for the pattern of a case
_OPTION = re.compile(r"\s*(--?[A-Za-z][\w-]*)(?=[\s=]|$)(?![^()]*\))")
_APART = re.compile(r"\s*([A-Za-z_]\w*)(?:\s+=\s*(\S+)|=\s+(\d+))")


@file_rule("PS678", Severity.ERROR, _FORMAT, source=f"{_MANUAL}#Escape-Character")
def commands_go_on_to_their_options(file: ConfigFile) -> Iterator[Hit]:
    """A command that goes on in the next line ends its own with a backslash.

    The backslash is the very last character: a blank behind it, or a remark between the lines, ends the
    command there. It starts without the options below, and the shell looks for a command of their name.
    """
    for number, line in (file.get("text") or {}).items():
        option = _OPTION.match(line)
        if option is not None:
            yield Hit(
                message=f"line {number} begins with {option[1]}: the command above has ended",
                fix="end the line above with a backslash, no blank behind it, and no remark between them",
                key=f"text.{number}",
            )


@file_rule("PS679", Severity.ERROR, _FORMAT, source=f"{_MANUAL}#Shell-Parameters")
def assignments_have_no_blanks(file: ConfigFile) -> Iterator[Hit]:
    """Names, equals signs and values stand together.

    `N = 8` runs a command N with two words, and `N= 8` a command 8. The variable stays as it was, which
    mostly is empty.
    """
    for number, line in (file.get("text") or {}).items():
        apart = _APART.match(line)
        if apart is not None:
            yield Hit(
                message=f"line {number}: {apart[0].strip()} assigns nothing",
                fix=f"write {apart[1]}={apart[2] or apart[3]}",
                key=f"text.{number}",
            )
