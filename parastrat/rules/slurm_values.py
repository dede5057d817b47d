"""PS551: what stands behind options of sbatch and srun, as Slurm reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_values import NUMERALS
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from parastrat.config_file import ConfigFile

#: parse_int, verify_node_count and str_to_mbytes there; time_str2secs in parse_time.c
_SOURCE = "https://github.com/SchedMD/slurm/blob/slurm-26.05/src/common/proc_args.c"
_FORMAT = ConfigFormat.SCRIPT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """How Slurm reads a value."""

    pattern: re.Pattern[str]
    #: completes "Slurm reads"
    noun: str
    #: what was probably meant; None where nothing is near
    meant: Callable[[str], str | None]


def _number(value: str) -> str | None:
    """Return the number that a word is, or that stands before other letters."""
    digits = re.match(r"[1-9]\d*", value)
    return NUMERALS.get(value.lower()) or (digits[0] if digits else None)


def _size(value: str) -> str | None:
    """Return whole gibibytes or the like with the letter that Slurm has for them."""
    found = re.fullmatch(r"(\d+)(?:\.0*)?\s*([KMGT])(?:i?B|b|iga.*)?", value, re.IGNORECASE)
    return found[1] + found[2].upper() if found else None


def _time(value: str) -> str | None:
    """Return a time with a letter for its unit as Slurm writes it."""
    found = re.fullmatch(r"(\d+)\s*(d|h|m)[a-z]*", value, re.IGNORECASE)
    if found is None:
        return None
    return {"d": f"{found[1]}-0", "h": f"{found[1]}:00:00", "m": found[1]}[found[2].lower()]


_NUMBER = _Form(pattern=re.compile(r"\+?0*[1-9]\d*"), noun="a whole number, 1 or more", meant=_number)
_NODES = _Form(
    pattern=re.compile(r"\d+[km]*(?:-\d+[km]*)?|\d[\d,:-]*", re.IGNORECASE),
    noun="a number of nodes, or a range such as 2-4",
    meant=_number,
)
_SIZE = _Form(
    pattern=re.compile(r"\+?\d+(?:[kmgt]b?)?", re.IGNORECASE),
    noun="whole megabytes, or so many K, M, G or T",
    meant=_size,
)
_TIME = _Form(
    pattern=re.compile(
        r"\d+|\d+:\d+(?::\d+)?|\d+-\d*|\d+-\d+(?::\d+){1,2}|-1|infinite|unlimited", re.IGNORECASE
    ),
    noun="minutes, hours:minutes:seconds, or days-hours",
    meant=_time,
)
_FORMS: Mapping[str, _Form] = {
    "nodes": _NODES,
    **dict.fromkeys(("mem", "mem-per-cpu", "mem-per-gpu"), _SIZE),
    **dict.fromkeys(("time", "time-min"), _TIME),
    **dict.fromkeys(
        (
            "cpus-per-gpu",
            "cpus-per-task",
            "mincpus",
            "ntasks",
            "ntasks-per-core",
            "ntasks-per-gpu",
            "ntasks-per-node",
            "ntasks-per-socket",
        ),
        _NUMBER,
    ),
}


@file_rule("PS551", Severity.ERROR, _FORMAT, source=_SOURCE)
def slurm_reads_the_values(file: ConfigFile) -> Iterator[Hit]:
    """What stands behind an option of Slurm's must be of its form.

    Counts are whole numbers, sizes have one letter for their unit, and times have none: 24h is no time, and
    200GiB no size. sbatch and srun stop at another.
    """
    for section in ("sbatch", "srun"):
        for name, value in (file.get(section) or {}).items():
            form = _FORMS.get(name)
            if form is None or not value or FILLED_IN.search(value) or form.pattern.fullmatch(value):
                continue
            meant = form.meant(value)
            yield Hit(
                message=f"--{name}={value}: Slurm reads {form.noun}",
                fix=f"did you mean {meant}?" if meant else f"write {form.noun}",
                key=f"{section}.{name}",
            )
