"""``[tool.parastrat.check]`` of pyproject.toml, or ``[check]`` of parastrat.toml: a project's own wishes.

Which rules it wants, which it leaves out and why, and what its files are for.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parastrat.check.recognition import text_of
from parastrat.check.settings_form import neighbour_problems, setting_problems
from parastrat.errors import ConfigError
from parastrat.parse.model_ref import resolved_ref
from parastrat.parse.positions import key_positions
from parastrat.parse.problems import located, problem_lines
from parastrat.rules.codes import code_prefix

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROJECT = "pyproject.toml"
OWN = "parastrat.toml"
#: where the table stands in each file, most usual first
TABLES = {PROJECT: ("tool.parastrat.check",), OWN: ("check", "tool.parastrat.check")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignore:
    """Rules that are left out, and why."""

    #: what their codes begin with
    prefix: str
    reason: str
    #: the file that says so, or the flag
    stated_in: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a project says of some of its files, or of all."""

    #: where they stand; None: nobody said anything
    path: Path | None = None
    #: what the codes of the wanted rules begin with; None: all are wanted
    select: tuple[str, ...] | None = None
    ignore: tuple[Ignore, ...] = ()
    #: HARDWARE and MODEL, for files that state none
    on: str | None = None
    model: str | None = None
    #: pattern of a path below the settings' folder, and what it says beside the rest
    of_paths: tuple[tuple[str, Settings], ...] = ()

    @property
    def shown(self) -> Path | None:
        """The path as it is told."""
        return None if self.path is None else _shown(self.path)

    def of(self, file: Path) -> Settings:
        """Return what is said of one file: later patterns win, ignores add up."""
        if self.path is None:
            return self
        found = replace(self, of_paths=())
        inside = Path(os.path.relpath(_placed(file), _placed(self.path).parent)).as_posix()
        if inside.startswith("../"):  # the working directory's, for a file elsewhere
            return found
        for pattern, more in self.of_paths:
            if _matches(inside, pattern):
                found = replace(
                    found,
                    select=found.select if more.select is None else more.select,
                    ignore=(*found.ignore, *more.ignore),
                    on=more.on or found.on,
                    model=more.model or found.model,
                )
        return found


def settings_of(file: Path) -> Settings:
    """Return what the nearest project says of a file: upwards from it, else from the working directory.

    Raises:
        ConfigError: the settings are malformed, or stand twice in one folder.
    """
    for start in (_placed(file).parent, Path.cwd()):
        for folder in (start, *start.parents):
            found = [settings for name in TABLES if (settings := read_settings(folder / name))]
            if len(found) > 1:
                raise ConfigError(
                    f"both {PROJECT} and {OWN} in {folder} have settings of the checker",
                    hint="keep one of the two tables",
                )
            if found:
                return found[0].of(file)
    return Settings()


def read_settings(path: Path) -> Settings | None:
    """Return the settings in a file; None where there is no such file, or no table of the checker in it.

    Raises:
        ConfigError: unreadable, not TOML, unknown keys, wrong types, codes of no rule, or no reason.
    """
    if not path.is_file():
        return None
    shown = _shown(path)
    text = text_of(path)
    try:
        whole = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{shown} is not TOML: {error}", hint="mend the line; text stands in quotes"
        ) from error
    names = [name for name in TABLES[path.name] if _at(whole, name) is not None]
    if len(names) > 1:
        raise ConfigError(f"{shown} has [{names[0]}] and [{names[1]}]", hint=f"keep [{names[0]}] alone")
    problems = list(neighbour_problems(whole, is_own=path.name == OWN))
    for name in names:
        problems += setting_problems(_at(whole, name), name)
    if problems:
        positions = key_positions(text)
        placed = [located(problem, positions) for problem in problems]
        placed.sort(key=lambda problem: problem.position or (0, 0))
        raise ConfigError(problem_lines(shown, placed), hint=placed[0].hint)
    return _settings(_at(whole, names[0]), path) if names else None


def _at(whole: Mapping[str, Any], name: str) -> Any:
    """Return what stands at a dotted name; None when nothing does."""
    here: Any = whole
    for part in name.split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return here


def _settings(table: Mapping[str, Any], path: Path) -> Settings:
    """Return a table, which has been found good, as settings."""
    select = table.get("select")
    return Settings(
        path=path,
        select=None if select is None else tuple(code_prefix(code) for code in select),
        ignore=tuple(
            Ignore(prefix=code_prefix(code), reason=reason.strip(), stated_in=str(_shown(path)))
            for code, reason in table.get("ignore", {}).items()
        ),
        on=_resolved_hardware(table["on"], path) if "on" in table else None,
        model=resolved_ref(table["model"], path) if "model" in table else None,
        of_paths=tuple(_of_paths(table.get("paths", {}), path)),
    )


def _of_paths(table: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Settings]]:
    for pattern, more in table.items():
        yield pattern, _settings(more, path)


def _resolved_hardware(ref: str, path: Path) -> str:
    """Return HARDWARE; a file of ``probe -o`` lies relative to the settings."""
    head, _, count = ref.rpartition(":")
    name = head if count.isdecimal() else ref
    return os.path.normpath(path.resolve().parent / ref) if "/" in name or name.endswith(".toml") else ref


def _matches(inside: str, pattern: str) -> bool:
    """Whether a path is meant: ``*`` passes ``/`` too, and a folder stands for all that is in it."""
    pattern = pattern.removeprefix("./").rstrip("/")
    return fnmatchcase(inside, pattern) or fnmatchcase(inside, f"{pattern}/*")


def _placed(file: Path) -> Path:
    """Return where a file lies: its folder resolved, but not its name, for a link is of its own project."""
    return file.parent.resolve() / file.name


def _shown(path: Path) -> Path:
    """Return a path as it is seen from the working directory, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
