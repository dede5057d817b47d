"""Text of config files to values with positions: JSON, YAML and TOML."""

from __future__ import annotations

import json
import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from parastrat.errors import ConfigError
from parastrat.parse.positions import key_positions

#: a configuration is small; a larger file is something else
_MOST_BYTES = 1_000_000
#: tables within tables; known configurations have five
_DEPTH = 40
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)


class ConfigSyntaxError(ConfigError):
    """A file that is not of its format; ``position`` is a line and a column, both from 1, or None."""

    def __init__(self, message: str, *, hint: str, position: tuple[int, int] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.position = position


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What a text says, and where."""

    table: dict[str, Any]
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: dotted keys that are written twice; ``table`` has the last value
    repeated: tuple[str, ...] = ()
    #: what the text has beyond its format, though it can be read: what, line and column
    beyond: tuple[str, tuple[int, int]] | None = None


def json_structure(text: str) -> Structure:
    """Read JSON; comments and commas behind the last entry are read over, and told in ``beyond``.

    Raises:
        ConfigSyntaxError: it is none, or no object.
    """
    check_size(text)
    beyond = None
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        bare, beyond = _without_extras(text)
        if beyond is None:
            raise _json_error(text, error) from error
        text = bare
        try:
            table = json.loads(text)
        except (json.JSONDecodeError, RecursionError, ValueError):
            raise _json_error(bare, error) from error
    except (RecursionError, ValueError) as error:
        raise ConfigSyntaxError(
            "not readable as JSON: nested too deep, or a number too long", hint=_MEND
        ) from error
    _check_table(table)
    positions, repeated = _json_positions(text)
    return Structure(table=table, positions=positions, repeated=tuple(repeated), beyond=beyond)


#: text in quotes; a comment; a comma before a closing bracket
_EXTRAS = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|(?P<comment>//[^\n]*|#[^\n]*|/\*.*?\*/)|(?P<comma>,)(?=\s*[}\]])', re.DOTALL
)


def _without_extras(text: str) -> tuple[str, tuple[str, tuple[int, int]] | None]:
    """Return a text with blanks for comments and last commas, and the first of them with its place."""
    first: tuple[str, tuple[int, int]] | None = None

    def blank(match: re.Match[str]) -> str:
        nonlocal first
        if match.lastgroup is None:
            return match[0]
        what = "a comment" if match.lastgroup == "comment" else "a comma behind the last entry"
        start = match.start()
        place = (text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))
        first = first if first is not None and first[1] < place else (what, place)
        return re.sub(r"[^\n]", " ", match[0])

    # commas once more: one may stand before a comment that stood before the bracket
    return _EXTRAS.sub(blank, _EXTRAS.sub(blank, text)), first


def _json_error(text: str, error: json.JSONDecodeError) -> ConfigSyntaxError:
    line = text.splitlines()[error.lineno - 1 : error.lineno]
    rest = line[0][error.colno - 1 :] if line else ""
    python = {"True": "true", "False": "false", "None": "null"}
    hint = next(
        (f"write {json_} for Python's {word}" for word, json_ in python.items() if rest.startswith(word)),
        "",
    )
    if rest.startswith("'"):
        hint = "write \" for '"
    return ConfigSyntaxError(
        f"not JSON: {error.msg}",
        hint=hint or "mend the line, or the end of the one before",
        position=(error.lineno, error.colno),
    )


def yaml_structure(text: str) -> Structure:
    """Read YAML 1.1, as PyYAML does: ``no`` is false.

    Raises:
        ConfigSyntaxError: it is none, or no mapping.
    """
    from ruamel.yaml.error import (  # noqa: PLC0415  (only the checker needs it)
        MarkedYAMLError,
        ReusedAnchorWarning,
        YAMLError,
    )

    from parastrat.parse.yaml_text import load_yaml  # noqa: PLC0415

    check_size(text)
    try:
        loaded = load_yaml(text)
    except ReusedAnchorWarning as error:
        place = re.search(r"second occurrence.*?line (\d+), column (\d+)", str(error), re.DOTALL)
        raise ConfigSyntaxError(
            f"not YAML: {str(error).strip().splitlines()[0]}",
            hint="give one of the anchors another name",
            position=None if place is None else (int(place[1]), int(place[2])),
        ) from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        raise ConfigSyntaxError(
            f"not YAML: {error.problem or error.context}",
            hint=_MEND,
            position=None if mark is None else (mark.line + 1, mark.column + 1),
        ) from error
    except (
        YAMLError,
        RecursionError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        IndexError,
    ) as error:
        # the reader's own faults on texts that are no YAML at all
        raise ConfigSyntaxError(
            f"not YAML: {str(error).splitlines()[0] if str(error) else 'broken'}", hint=_MEND
        ) from error
    _check_table(loaded.table)
    positions = dict(_yaml_positions(loaded.table))
    repeated = tuple(
        key for key, (line, column) in positions.items() if (line - 1, column - 1) in loaded.repeats
    )
    return Structure(table=_plain(loaded.table), positions=positions, repeated=repeated)


def toml_structure(text: str) -> Structure:
    """Read TOML.

    Raises:
        ConfigSyntaxError: it is none.
    """
    check_size(text)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, position = toml_fault(text, error)
        raise ConfigSyntaxError(f"not TOML: {reason}", hint=_MEND, position=position) from error
    except (ValueError, RecursionError) as error:
        raise ConfigSyntaxError(f"not readable as TOML: {error}", hint=_MEND) from error
    return Structure(table=table, positions=key_positions(text))


def toml_fault(text: str, error: tomllib.TOMLDecodeError) -> tuple[str, tuple[int, int] | None]:
    """Return what is wrong with a text that is no TOML, and where, as far as it is told."""
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", str(error))
    if place is None:
        return str(error), None
    lines = text.splitlines() or [""]
    position = (int(place[1]), int(place[2])) if place[1] else (len(lines), len(lines[-1]) + 1)
    return str(error)[: place.start()], position


_MEND = "mend the file, or write it again with the tool that it is for"


def check_size(text: str) -> None:
    """Refuse what is too large for a configuration.

    Raises:
        ConfigSyntaxError: it is.
    """
    if len(text) > _MOST_BYTES:
        raise ConfigSyntaxError(
            f"{len(text):,} characters are no configuration", hint="name the configuration file"
        )


def _check_table(table: Any) -> None:
    if not isinstance(table, dict):
        kind = "list" if isinstance(table, list) else type(table).__name__
        what = "empty" if table is None else f"a {kind}, not a table of keys"
        raise ConfigSyntaxError(f"the file is {what}", hint=_MEND)


def _json_positions(text: str) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Return where each key of valid JSON stands, and the keys that stand twice."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    found: dict[str, tuple[int, int]] = {}
    repeated: list[str] = []
    #: path of each open table or list; for lists the index of the next element
    open_ones: list[tuple[str, int | None]] = []
    key, is_key = "", False
    for token in _TOKEN.finditer(text):
        word = token.group()
        if word in "{[":
            path = _joined(open_ones, key)
            open_ones.append((path, None if word == "{" else 0))
            key, is_key = "", word == "{"
        elif word in "}]":
            open_ones.pop()
            is_key = False
        elif word == ",":
            path, index = open_ones[-1]
            is_key = index is None
            if index is not None:
                open_ones[-1] = (path, index + 1)
        elif word == ":":
            is_key = False
        elif is_key:
            key = json.loads(word)
            path = _joined(open_ones, key)
            line = bisect_right(starts, token.start())
            if path in found:
                repeated.append(path)
            found[path] = (line, token.start() - starts[line - 1] + 1)
    return found, repeated


def _joined(open_ones: list[tuple[str, int | None]], key: str) -> str:
    if not open_ones:
        return ""
    path, index = open_ones[-1]
    last = key if index is None else str(index)
    return f"{path}.{last}" if path else last


def _yaml_positions(table: Any, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, tuple[int, int]]]:
    if depth > _DEPTH:
        return
    for name, value in table.items():
        path = f"{prefix}{name}"
        line, column = (
            table.lc.key(name)[:2] if name in (table.lc.data or {}) else (table.lc.line, table.lc.col)
        )
        yield path, (line + 1, column + 1)
        if hasattr(value, "lc"):
            yield from _positions_within(value, path, depth + 1)


def _positions_within(value: Any, path: str, depth: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield what stands in a table or a list; elements by their places in it, from 0."""
    if isinstance(value, dict):
        yield from _yaml_positions(value, f"{path}.", depth)
    elif isinstance(value, list) and depth <= _DEPTH:
        marks: Any = value
        for index, element in enumerate(value):
            own = (marks.lc.data or {}).get(index, (marks.lc.line, marks.lc.col))
            line, column = own[:2]
            yield f"{path}.{index}", (line + 1, column + 1)
            if hasattr(element, "lc"):
                yield from _positions_within(element, f"{path}.{index}", depth + 1)


def _plain(value: Any, depth: int = 0, known: dict[int, Any] | None = None) -> Any:
    """Return a value without what the reader keeps to write it again; what aliases share stays shared."""
    if depth > _DEPTH:
        return None
    known = {} if known is None else known
    if isinstance(value, (dict, list)):
        if id(value) not in known:
            if isinstance(value, dict):
                made: Any = {str(name): _plain(item, depth + 1, known) for name, item in value.items()}
            else:
                made = [_plain(item, depth + 1, known) for item in value]
            known[id(value)] = made
        return known[id(value)]
    if isinstance(value, bool) or value is None:
        return value
    # dates and tagged values are text to whoever reads a configuration
    return next((kind(value) for kind in (int, float) if isinstance(value, kind)), str(value))
