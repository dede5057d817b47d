"""Where each key of a TOML text stands; ``tomllib`` gives values without positions."""

from __future__ import annotations

import re
from bisect import bisect_right

_BLANK = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_KEY_PART = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|'
    r"'''.*?'{3,5}|"
    r'"(?:[^"\\\n]|\\.)*"|'
    r"'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def key_positions(text: str) -> dict[str, tuple[int, int]]:
    """Return every table and key, dotted, with its line and column, both from 1.

    Elements of lists are keys too: ``hardware.device.provenance.0.field``. The text must be valid TOML
    (parse it first); of invalid text the positions mean nothing.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    """One pass over one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self._found: dict[str, tuple[int, int]] = {}
        #: arrays of tables by path, with the index of their last element
        self._last_element: dict[tuple[str, ...], int] = {}

    def scan(self) -> dict[str, tuple[int, int]]:
        table: tuple[str, ...] = ()
        self._skip(_BLANK)
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                table = self._header()
            else:
                self._assignment(table)
            self._skip(_BLANK)
        return self._found

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            # not TOML after all: step on, so that every text ends
            self._at += 1
            return ""
        self._at = match.end()
        return match.group()

    def _take(self, literal: str) -> bool:
        taken = self._text.startswith(literal, self._at)
        self._at += len(literal) if taken else 0
        return taken

    def _note(self, path: tuple[str, ...], offset: int) -> None:
        line = bisect_right(self._line_starts, offset)
        self._found.setdefault(".".join(path), (line, offset - self._line_starts[line - 1] + 1))

    def _header(self) -> tuple[str, ...]:
        start = self._at
        is_array = self._take("[[") or not self._take("[")
        self._skip(_SPACE)
        path = self._key()
        self._take("]]" if is_array else "]")
        table = self._inside_arrays(path[:-1]) + path[-1:]
        if is_array:
            self._note(table, start)
            index = self._last_element.get(table, -1) + 1
            self._last_element[table] = index
            table = (*table, str(index))
        else:
            table = self._inside_arrays(path)
        self._note(table, start)
        return table

    def _inside_arrays(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return the path with the index of the last element behind each array of tables."""
        full: tuple[str, ...] = ()
        for part in path:
            full = (*full, part)
            if full in self._last_element:
                full = (*full, str(self._last_element[full]))
        return full

    def _key(self) -> tuple[str, ...]:
        parts = []
        while True:
            part = self._skip(_KEY_PART)
            parts.append(part[1:-1] if part[:1] in {'"', "'"} else part)
            self._skip(_SPACE)
            if not self._take("."):
                return tuple(parts)
            self._skip(_SPACE)

    def _assignment(self, table: tuple[str, ...]) -> None:
        start = self._at
        path = (*table, *self._key())
        self._note(path, start)
        self._take("=")
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: tuple[str, ...]) -> None:
        if self._take("["):
            self._elements(path)
        elif self._take("{"):
            self._members(path)
        elif self._text[self._at : self._at + 1] in {'"', "'"}:
            self._skip(_STRING)
        else:
            self._skip(_SCALAR)

    def _elements(self, path: tuple[str, ...]) -> None:
        index = 0
        self._skip(_BLANK)
        while not self._take("]") and self._at < len(self._text):
            element = (*path, str(index))
            self._note(element, self._at)
            self._value(element)
            self._skip(_BLANK)
            self._take(",")
            self._skip(_BLANK)
            index += 1

    def _members(self, path: tuple[str, ...]) -> None:
        self._skip(_BLANK)
        while not self._take("}") and self._at < len(self._text):
            self._assignment(path)
            self._skip(_BLANK)
            self._take(",")
            self._skip(_BLANK)
