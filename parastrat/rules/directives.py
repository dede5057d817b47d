"""What Slurm reads of a batch script's directives, and what it takes for remarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_SBATCH = "https://slurm.schedmd.com/sbatch.html"
_READER = "https://github.com/SchedMD/slurm/blob/slurm-26.05/src/sbatch/opt.c"
_FORMAT = ConfigFormat.SCRIPT

#: directives whose values are numbers, or lists of them
_COUNTS = (
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "cpus-per-task",
    "cpus-per-gpu",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gres",
    "mem",
)


@file_rule("PS549", Severity.ERROR, _FORMAT, source=_READER)
def directives_are_options(file: ConfigFile) -> Iterator[Hit]:
    """Every word of a directive is an option, or its value.

    Slurm refuses a script with another ("Invalid directive found in batch script"): an option without its
    hyphens, a remark without its #, or the value of an option that takes one behind an equals sign alone,
    as --exclusive does.
    """
    for word in file.get("stray") or {}:
        if FILLED_IN.search(word) is None:
            yield Hit(
                message=f"{word} in an #SBATCH line is neither an option nor the value of one",
                fix=f"write --{word} if that is meant, an equals sign before a value, or # before a remark",
                key=f"stray.{word}",
            )


@file_rule("PS552", Severity.ERROR, _FORMAT, source=_READER)
def letters_have_no_equals_sign(file: ConfigFile) -> Iterator[Hit]:
    """The value of an option of one letter stands right behind it, or apart.

    An equals sign between them is read as a part of the value: -N=2 asks for "=2" nodes, and -p=gpu for a
    partition of that name.
    """
    for word in file.get("equal") or {}:
        letter, _, value = word.partition("=")
        yield Hit(
            message=f"{word}: Slurm reads the value ={value}",
            fix=f"write {letter} {value}",
            key=f"equal.{word}",
        )


@file_rule("PS550", Severity.WARNING, _FORMAT, source=_READER)
def directives_begin_their_lines(file: ConfigFile) -> Iterator[Hit]:
    """A directive begins with #SBATCH, the very first characters of its line.

    What begins otherwise is a remark, and the job gets the defaults of its partition. Nobody is told.
    """
    for number, line in (file.get("unread") or {}).items():
        yield Hit(
            message=f"line {number}: Slurm does not read {line}",
            fix="write #SBATCH in capitals, with no blank before it, or ##SBATCH for a remark",
            key=f"unread.{number}",
        )


@file_rule("PS665", Severity.WARNING, _FORMAT, source=_SBATCH)
def directives_come_first(file: ConfigFile) -> Iterator[Hit]:
    """Directives stand above the first command.

    Slurm reads #SBATCH lines up to the first line that is neither blank nor a comment. Those behind it are
    remarks, and the job gets the defaults of its partition.
    """
    for number, line in (file.get("late") or {}).items():
        yield Hit(
            message=f"line {number}: {line} stands below the first command",
            fix="move it up, right below the first line",
            key=f"late.{number}",
        )


@file_rule("PS680", Severity.WARNING, _FORMAT, source=_SBATCH)
def directives_are_not_expanded(file: ConfigFile) -> Iterator[Hit]:
    """Slurm reads directives before any shell does.

    A variable in an #SBATCH line stays its name, which is no number. sbatch stops, unless something fills
    the file in before.
    """
    for name in _COUNTS:
        value = str(file.get(f"sbatch.{name}") or "")
        if "$" in value and "{{" not in value:
            yield Hit(
                message=f"#SBATCH --{name}={value}: nothing is put in for the variable",
                fix=f"write a number, or give it as sbatch --{name}={value} ...",
                key=f"sbatch.{name}",
            )
