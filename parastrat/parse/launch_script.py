"""What a shell or batch script says of a launch: directives, variables, and how torchrun is started.

A line-wise reading, not a shell: what a variable or a substitution stands for stays unknown.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTIVE = re.compile(r"^#SBATCH\s+(--?[\w-]+)(?:[=\s]\s*(\S+))?")
_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)=(.*)$")
#: short options of sbatch, by their long names
_SHORT = {"-N": "nodes", "-n": "ntasks", "-c": "cpus-per-task", "-G": "gpus"}
#: options of torchrun that take no value
_SWITCHES = frozenset({"standalone", "no-python", "run-path", "module", "m", "help", "virtual-local-rank"})
_ENDS = frozenset({"&&", "||", ";", "|", "&"})


@dataclass(slots=True)
class _Found:
    """What was read so far, and where."""

    table: dict[str, Any] = field(default_factory=dict)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)

    def note(self, section: str, name: str, value: str, line: int) -> None:
        self.table.setdefault(section, {})[name] = value
        self.positions.setdefault(section, (line, 1))
        self.positions[f"{section}.{name}"] = (line, 1)


def script_table(text: str) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Return what a script states, and where.

    The tables are ``sbatch`` (directives by their long names), ``env`` (exported variables), ``torchrun``
    (options with hyphens; ``srun``: started by it; ``module``: ``torch.distributed.launch``), and ``text``,
    the logical lines by their number. Values are text as written.
    """
    found = _Found()
    for number, line in _logical_lines(text):
        directive = _DIRECTIVE.match(line)
        if directive is not None:
            option = directive[1]
            found.note("sbatch", _SHORT.get(option, option.lstrip("-")), directive[2] or "", number)
            continue
        if line.lstrip().startswith("#"):
            continue
        found.table.setdefault("text", {})[str(number)] = line
        found.positions[f"text.{number}"] = (number, 1)
        _read_words(line, number, found)
    return found.table, found.positions


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their first number; a backslash at the end joins the next."""
    start, joined = 1, ""
    for number, line in enumerate(text.splitlines(), 1):
        start = start if joined else number
        if line.endswith("\\"):
            joined += line[:-1] + " "
            continue
        yield start, joined + line
        joined = ""
    if joined:
        yield start, joined


def _read_words(line: str, number: int, found: _Found) -> None:
    assigned = _ASSIGNMENT.match(line.strip())
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return  # a quote that ends on another line
    if assigned is not None and len(words) <= 2:
        value = words[-1].partition("=")[2] if words else ""
        found.note("env", assigned[1], value, number)
        return
    for place, word in enumerate(words):
        module = _module_of(words, place)
        if word.rpartition("/")[2] == "torchrun" or module:
            started = words[place + (3 if module else 1) :]
            _read_torchrun(started, number, found)
            found.note("torchrun", "srun", "yes" if "srun" in words[:place] else "no", number)
            if module:
                found.note("torchrun", "launcher", module, number)
            return


def _module_of(words: list[str], place: int) -> str:
    """Return ``torch.distributed.run`` or ``launch`` where python runs it as a module; else nothing."""
    is_python = words[place].rpartition("/")[2].startswith("python")
    rest = words[place + 1 : place + 3]
    if is_python and len(rest) == 2 and rest[0] == "-m" and rest[1].startswith("torch.distributed."):
        return rest[1]
    return ""


def _read_torchrun(words: list[str], number: int, found: _Found) -> None:
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or word in _ENDS:
            return  # the script, and what is its own
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if not equals and name not in _SWITCHES:
            value = next(rest, "")
        found.note("torchrun", name, value or "yes", number)
