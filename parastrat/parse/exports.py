"""Which of the variables that a script sets stay within its shell: no program that it starts sees those."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.parse.shell_lines import is_comment

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

#: what exports all that is set behind it, or brings lines of other files, which may export anything
_OPEN = re.compile(r"\bset\s+(?:-\w*a|-o\s+allexport)|\ballexport\b|(?:^|[;&|]\s*)\s*(?:source|\.|eval)\s")
#: where a shell puts a value in
_READS = r"\$(?:{name}\b|\{{{name}\b)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Names of variables that a script sets without handing them on."""

    #: those that it does not read either
    unread: frozenset[str] = frozenset()
    #: its own ones, which it reads
    read: frozenset[str] = frozenset()


def kept_within(lines: Sequence[str], names: Collection[str]) -> Kept:
    """Return which of some names that plain assignments set are exported by nothing in a script.

    A name that stands anywhere else than where it is set or read, as in ``export NAME`` and
    ``mpirun -x NAME``, is handed on as far as anybody can see.

    Args:
        lines: all logical lines of the script.
        names: of its variables.
    """
    code = [line for line in lines if not is_comment(line)]
    if any(_OPEN.search(line) for line in code):
        return Kept()
    read, unread = set[str](), set[str]()
    for name in names:
        uses = [line for line in code if re.search(rf"\b{name}\b", line)]
        plain = [line for line in uses if _is_set_alone(line, name)]
        reading = re.compile(_READS.format(name=name))
        rest = [reading.sub("", line) for line in uses if line not in plain]
        if not plain or any(re.search(rf"\b{name}\b", line) for line in rest):
            continue
        (read if rest or any(reading.search(line) for line in plain) else unread).add(name)
    return Kept(unread=frozenset(unread), read=frozenset(read))


def _is_set_alone(line: str, name: str) -> bool:
    """Whether a line sets a name and does nothing else: a command behind it would be given the name."""
    value = r"(?:\"[^\"]*\"|'[^']*'|\$\([^()]*\)|[^\s\"'();&|]*)"
    return re.fullmatch(rf"\s*{name}={value}\s*;?\s*(?:#.*)?", line, re.DOTALL) is not None
