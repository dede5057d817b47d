"""A config file that somebody wrote, as its values and where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any


class ConfigFormat(StrEnum):
    """What ``parastrat check`` reads."""

    PLAN = "plan"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    #: TOML of the releases up to 0.2.2
    TORCHTITAN = "torchtitan"
    #: functions in Python, as later releases take them
    TORCHTITAN_PYTHON = "torchtitan_python"
    #: YAML of Kubeflow Trainer
    TRAINJOB = "trainjob"
    #: YAML of Kubeflow's Training Operator, which is Trainer's first version
    PYTORCHJOB = "pytorchjob"
    #: a shell or batch script that starts torchrun, accelerate launch, deepspeed, or ranks by itself
    SCRIPT = "script"


#: the formats of torchtitan, of one version or another
TORCHTITANS = (ConfigFormat.TORCHTITAN, ConfigFormat.TORCHTITAN_PYTHON)
#: formats of jobs that operators start pods for
JOBS = (ConfigFormat.TRAINJOB, ConfigFormat.PYTORCHJOB)


class Open(Enum):
    """Stands for a value that is written, or handed on, and that nobody can tell without running code."""

    OPEN = "open"


OPEN = Open.OPEN

#: of the shell, or of a template that somebody fills in: nobody knows here what will stand there
FILLED_IN = re.compile(r"[$`{}<>%@]")


def whole_number(value: object, digits: int = 10) -> int | None:
    """Return the number that a text is, of fewer digits than so many; None for anything else."""
    known = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < digits
    return int(value) if known and isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """Values by key, with the position of each key."""

    format: ConfigFormat
    table: Mapping[str, Any]
    #: dotted key to line and column, both from 1
    positions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: dotted keys that are written twice
    repeated: tuple[str, ...] = ()
    #: dotted keys whose number or switch is written as text
    quoted: frozenset[str] = frozenset()
    #: how many devices it is to run on, where somebody says so
    devices: int | None = None
    #: and of which compute capability, as NVIDIA counts
    compute_capability: str | None = None

    @property
    def compute_major(self) -> int | None:
        """The major number of that capability, which tells the architecture."""
        return whole_number((self.compute_capability or "").partition(".")[0])

    def get(self, key: str) -> Any:
        """Return the value of a dotted key; None where it, or a table around it, is absent.

        The entries of lists are counted from 0.
        """
        value: Any = self.table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else _entry(value, part)
        return value

    def places(self, pattern: str) -> Iterator[str]:
        """Yield the dotted keys of a pattern, in which ``*`` stands for any key or entry."""
        before, star, behind = pattern.partition("*")
        if not star:
            yield pattern
            return
        around = self.get(before.rstrip("."))
        listed = range(len(around)) if isinstance(around, list) else around
        for name in listed if isinstance(around, list | Mapping) else ():
            yield from self.places(f"{before}{name}{behind}")

    def number(self, key: str) -> int | None:
        """Return a whole number; None for anything else, ``"auto"`` among it."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def is_open(self, *keys: str) -> bool:
        """Return whether what one of these keys says cannot be told."""
        return any(self.get(key) is OPEN for key in keys)

    def is_on(self, key: str) -> bool:
        """Return whether a switch is set."""
        return self.get(key) is True


def _entry(value: object, number: str) -> Any:
    """Return an entry of a list, by its number; None where there is no such list."""
    index = whole_number(number)
    return value[index] if isinstance(value, list) and index is not None and index < len(value) else None
