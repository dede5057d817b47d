"""One shipped profile: a TOML file whose figures carry their kind and their source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from parastrat.errors import ProfileError
from parastrat.hardware import FigureKind, Provenance

#: what may stand in a profile's name; anything else is no name, and never a path
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")


@cache
def profiles_root() -> Path:
    """Return the folder of the shipped profiles: in the wheel, else in the repository."""
    here = Path(__file__).resolve().parents[1]
    packed = here / "_profiles"
    return packed if packed.is_dir() else here.parent / "profiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A value with its kind and source, as profiles state every fact that is not a name."""

    value: Any
    kind: FigureKind
    source: str

    def provenance(self, field: str) -> Provenance:
        """Return where the value of this field comes from."""
        return Provenance(field=field, kind=self.kind, source=self.source)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """A profile's table, and the path that errors name."""

    path: Path
    table: Mapping[str, Any]

    def text(self, key: str) -> str:
        """Return a required text.

        Raises:
            ProfileError: when it is absent or no text.
        """
        value = self.table.get(key)
        if not isinstance(value, str):
            raise self.error(f"{key} must be a text, not {value!r}")
        return value

    def section(self, key: str) -> Mapping[str, Any]:
        """Return a table of the file; empty when absent.

        Raises:
            ProfileError: when the key holds something else.
        """
        value = self.table.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key} must be a table, not {value!r}")
        return value

    def figure(self, key: str) -> Figure:
        """Return a required figure by its dotted key.

        Raises:
            ProfileError: when it is absent, or lacks value, kind or source.
        """
        section, _, name = key.rpartition(".")
        entry = (self.section(section) if section else self.table).get(name)
        if not isinstance(entry, dict) or set(entry) != {"value", "kind", "source"}:
            raise self.error(f"{key} must be {{ value, kind, source }}, not {entry!r}")
        if entry["kind"] not in list(FigureKind):
            raise self.error(f"{key}.kind must be one of {', '.join(FigureKind)}, not {entry['kind']!r}")
        return Figure(value=entry["value"], kind=FigureKind(entry["kind"]), source=entry["source"])

    def number(self, key: str) -> float:
        """Return a required figure's number.

        Raises:
            ProfileError: as ``figure`` does, and when the value is no number.
        """
        value = self.figure(key).value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{key} must be a number, not {value!r}")
        return float(value)

    def error(self, fault: str) -> ProfileError:
        """Return the error that says what is wrong with this file."""
        return ProfileError(f"profile {self.path}: {fault}", hint="reinstall parastrat, or mend the file")


def read_profile(folder: str, name: str) -> ProfileFile | None:
    """Read one shipped profile by its own name; None when there is none.

    Raises:
        ProfileError: for a file that is unreadable, not TOML or empty.
    """
    if not _NAME.fullmatch(name):
        return None
    path = profiles_root() / folder / f"{name}.toml"
    try:
        stat = path.stat()
        table = _parsed(path, (stat.st_mtime_ns, stat.st_size))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ProfileFile(path=path, table={}).error(f"cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileFile(path=path, table={}).error(f"is not TOML: {error}") from error
    if not table:
        raise ProfileFile(path=path, table={}).error("is empty")
    return ProfileFile(path=path, table=table)


@cache
def _parsed(path: Path, _version: tuple[int, int]) -> Mapping[str, Any]:
    """Return a file's table as it was at some time and size: many jobs read the same few profiles."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def read_format(name: str) -> Mapping[str, Any]:
    """Return the keys of a framework's configuration, as ``profiles/formats`` has them.

    Raises:
        ProfileError: for a file that is missing, unreadable, not TOML or empty.
    """
    file = read_profile("formats", name)
    if file is None:
        raise ProfileFile(path=profiles_root() / "formats" / f"{name}.toml", table={}).error("is missing")
    return file.table
