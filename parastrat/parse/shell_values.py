"""What a script's variables hold where that is certain: constants of its own, set once and for every way.

A name is followed through assignments that stand by themselves at the top of a file. One that is set
anywhere else too (under a condition, in a loop or a function, by ``read`` or another command) is unknown,
as are all of them behind a file that is sourced, and whatever comes from outside.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parastrat.parse.shell_lines import closing_bracket, is_comment, split_bare, words_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: stands for a dollar sign that is text, not the beginning of a variable
_LITERAL = "\x01"
_NAME = r"[A-Za-z_]\w*"
#: a variable, one with another word for where it is not set, and the elements of a list
_REFERENCE = re.compile(
    rf"\$(?P<bare>{_NAME})|\$\{{(?P<braced>{_NAME})(?::?-[^${{}}`\"']*)?\}}|\$\{{(?P<list>{_NAME})\[[@]\]\}}"
)
_ELEMENTS = re.compile(rf'"\$\{{({_NAME})\[@\]\}}"')
_SUM = re.compile(r"\$\(\((?P<sum>[^()`]*)\)\)")
_OPERAND = re.compile(rf"\$?\{{?(?P<name>{_NAME})\}}?|(?P<number>\d{{1,9}})")
#: what a sum may have beside names and numbers
_PRODUCT = re.compile(r"\d+(\s*[*+-]\s*\d+)*")
#: a name that a line gives a value to, as a shell or a program within it would
_SET = re.compile(rf"(?<![\w$./?&-])({_NAME})(?:\[[^\]]*\])?\+?=(?!=)")
_SET_IF_UNSET = re.compile(rf"\$\{{({_NAME}):?=")
_COUNTED = re.compile(r"(?<!\$)\(\((.*?)\)\)")
#: commands that give values to the names behind them
_SETTING = re.compile(
    r"\b(?:read|for|select|local|declare|typeset|unset|mapfile|readarray|getopts|let|printf\s+-v)\b([^;|&]*)"
)
_LIST = re.compile(
    rf"^(?P<head>(?:export\s+)?)(?P<name>{_NAME})(?P<more>\+?)=\((?P<inside>.*)\)\s*;?\s*$", re.DOTALL
)
#: words that begin what holds commands of its own
OPENING = frozenset({"if", "for", "while", "until", "select", "case", "{", "("})
_CLOSING = frozenset({"fi", "done", "esac", "}", ")"})
_LEADING = frozenset({"then", "do", "else", "elif", "!", "time"})
_FUNCTION = re.compile(rf"\s*(?:function\s+{_NAME}|{_NAME}\s*\(\))")
#: scripts that set up an environment, under names of their own
_ENVIRONMENTS = re.compile(
    r"(?:^|/)(?:activate|conda\.sh|mamba\.sh|\.bashrc|\.bash_profile|\.?profile|modules?\.sh|bash)$"
)
#: what makes of a value something else than the text it is
_ACTIVE = re.compile(r"[`;&|<>]")
#: quotes of a substitution, which would be others where the value is put in
_QUOTING = re.compile(r"\$\([^)]*[\"']")
#: characters of the longest word that Linux hands to a program (MAX_ARG_STRLEN, 32 pages of 4 KiB)
_MOST = 131_072
_OTHER_SHELL = re.compile(r"#!.*\b(?:zsh|fish|csh|tcsh)\b")


@dataclass(slots=True)
class ShellValues:
    """What is known at a line; ``follow`` goes on to the next."""

    #: of a list its elements; words that the shell alone knows stand in them as they are written
    known: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    #: names that other programs see
    exported: set[str] = field(default_factory=set)
    #: names that are set somewhere under a condition
    unsure: frozenset[str] = frozenset()
    #: names that are set once, which hold it in functions as well
    once: frozenset[str] = frozenset()
    #: tables that are open around a line
    depth: int = 0
    #: whether splitting, or the shell, is another one
    is_off: bool = False

    def follow(self, line: str) -> None:
        """Take in what a line sets."""
        segments = words_of(_marked(self.expanded(line))) or []
        if self.depth == 0 and not self.is_off:
            self._take(line)
        self.depth = max(0, self.depth + _opened(segments))
        if _brings_others(segments):
            self.known.clear()

    def _take(self, line: str) -> None:
        listed = _LIST.match(line.strip())
        if listed is not None:
            elements = words_of(_marked(self.expanded(listed["inside"])))
            old = self.known.get(listed["name"], ()) if listed["more"] else ()
            is_list = elements is not None and isinstance(old, tuple) and not _LIST.match(listed["inside"])
            self._set(listed["name"], (*old, *(elements or ())) if is_list else None)
            return
        statement = _statement(self.expanded(line))
        for word in statement or ():
            name, equals, value = word.partition("=")
            if name == "IFS":
                self.is_off = True
            if equals:
                self._set(name, None if _ACTIVE.search(value) else value)
            if line.lstrip().startswith("export"):
                self.exported.add(name)

    def _set(self, name: str, value: str | tuple[str, ...] | None) -> None:
        parts = value if isinstance(value, tuple) else (value or "",)
        active = any(_ACTIVE.search(part) or _QUOTING.search(part) for part in parts)
        if value is None or active or name in self.unsure or _is_of_the_shell(value):
            self.known.pop(name, None)
        else:
            self.known[name] = value

    def in_function(self) -> ShellValues:
        """Return what is known where a function runs, which may be anywhere behind."""
        return self._only(self.once)

    def in_step(self) -> ShellValues:
        """Return what another shell knows, that this one starts."""
        return self._only(self.exported)

    def _only(self, names: Iterable[str]) -> ShellValues:
        known = {name: self.known[name] for name in names if name in self.known}
        return ShellValues(known=known, is_off=self.is_off)

    def expanded(self, line: str) -> str:
        """Return a line with the values of known variables, quoted as they will be read."""
        if self.is_off or not self.known or "$" not in line:
            return line
        parts, place, quote = [], 0, ""
        while place < len(line):
            end, text = self._next(line, place, quote)
            if line[place] in "\"'" and end == place + 1:
                quote = "" if quote == line[place] else quote or line[place]
            parts.append(text)
            place = end
        whole = "".join(parts)
        return whole if len(whole) <= _MOST else line

    def _next(self, line: str, place: int, quote: str) -> tuple[int, str]:
        """Return the end of what stands at a place, and what it becomes."""
        if quote == "'":
            return place + 1, line[place]
        if line[place] == "\\":
            return place + 2, line[place : place + 2]
        whole = None if quote else _ELEMENTS.match(line, place)
        if whole is not None and isinstance(self.known.get(whole[1]), tuple):
            return whole.end(), _unquoted(self.known[whole[1]])
        summed = _SUM.match(line, place)
        if summed is not None:
            number = self._sum(summed["sum"])
            return summed.end(), summed[0] if number is None else str(number)
        if line.startswith("$(", place):
            end = closing_bracket(line, place + 2) or place + 2
            return end, line[place:end]
        found = _REFERENCE.match(line, place)
        if found is None:
            return place + 1, line[place]
        return found.end(), self._value_of(found, quote)

    def _value_of(self, found: re.Match[str], quote: str) -> str:
        value, is_list = self.known.get(found["bare"] or found["braced"] or found["list"]), found["list"]
        other = not value and ("-" in found[0] or "=" in found[0])
        if value is None or other or isinstance(value, tuple) is not bool(is_list) or (quote and is_list):
            return found[0]
        return _escaped(str(value)) if quote else _unquoted(value)

    def _sum(self, text: str) -> int | None:
        """Return what a sum of known whole numbers makes; None for any other."""

        def number(operand: re.Match[str]) -> str:
            value = self.known.get(operand["name"]) if operand["name"] else operand["number"]
            return value if isinstance(value, str) and value.isdecimal() else "?"

        plain = _OPERAND.sub(number, text).strip()
        if _PRODUCT.fullmatch(plain) is None:
            return None
        total = 0
        for sign, product in re.findall(r"(^|[+-])\s*(\d+(?:\s*\*\s*\d+)*)", plain):
            factors = 1
            for factor in product.split("*"):
                factors *= int(factor)
            total += -factors if sign == "-" else factors
        return total


def shell_values(lines: Sequence[str], first: str) -> ShellValues:
    """Return what is known before the first line of a script.

    Args:
        lines: all its logical lines.
        first: its first line as it is written.
    """
    unsure: set[str] = set()
    sets: Counter[str] = Counter()
    depth, in_functions = 0, False
    for line in lines:
        if is_comment(line):
            continue
        listed = _LIST.match(line.strip())
        statement = (
            [listed["name"]] if listed else [word.partition("=")[0] for word in _statement(line) or ()]
        )
        if depth == 0:
            sets.update(statement)
        unsure |= set(_set_elsewhere(line, () if depth else statement))
        words = words_of(line) or []
        in_functions = in_functions or bool(_FUNCTION.match(line))
        depth = max(0, depth + _opened(words))
        if in_functions and depth and _brings_others(words):
            return ShellValues(is_off=True)
    once = frozenset(name for name, count in sets.items() if count == 1)
    return ShellValues(unsure=frozenset(unsure), once=once, is_off=bool(_OTHER_SHELL.match(first)))


def _set_elsewhere(line: str, statement: Sequence[str]) -> Iterator[str]:
    """Yield names that a line sets, but for those of an assignment by itself."""
    if not statement:
        yield from _SET.findall(line)
    for pattern in (_COUNTED, _SETTING):
        for inside in pattern.findall(line):
            yield from re.findall(_NAME, inside)
    yield from _SET_IF_UNSET.findall(line)


def _statement(line: str) -> list[str] | None:
    """Return the words of a line that only assigns and exports; None for any other."""
    words = words_of(_marked(line))
    if not words:
        return None
    names = words[1:] if words[0] in ("export", "readonly") else words
    plain = [word.removesuffix(";") if re.fullmatch(r"[\w=./:-]*;", word) else word for word in names]
    pattern = re.compile(_NAME + ("(=.*)?" if words[0] == "export" else "=.*"), re.DOTALL)
    is_one = all(pattern.fullmatch(word) for word in plain)
    return plain if is_one and plain else None


def _opened(words: Sequence[str]) -> int:
    """Return how many more blocks a line opens than it closes."""
    count, begins = 0, True
    for word in words:
        bare = word.removesuffix(";")
        if begins and (bare in OPENING or (bare.startswith("(") and not bare.startswith("(("))):
            count += 1
        elif begins and bare in _CLOSING:
            count -= 1
        elif bare.endswith("()") or (bare == "{" and not begins):
            count += bare == "{"
            begins = True
            continue
        begins = word.endswith((";", "&&", "||", "|", "&")) or (
            begins and (bare in _LEADING or bare in OPENING)
        )
    return count


def _brings_others(words: Sequence[str]) -> bool:
    """Whether a line runs text of elsewhere in this shell, which may set any name."""
    for place, word in enumerate(words):
        if word in ("source", ".", "eval") and (
            place == 0 or words[place - 1].endswith((";", "&&", "then"))
        ):
            behind = words[place + 1] if place + 1 < len(words) else ""
            return word == "eval" or _ENVIRONMENTS.search(behind.removesuffix(";")) is None
    return False


def _is_of_the_shell(value: str | tuple[str, ...]) -> bool:
    """Whether a value is one word that is not known: its name says as much."""
    return isinstance(value, str) and "$" in value and len(split_bare(value)) < 2


def _marked(source: str) -> str:
    """Return a line in which dollar signs that are text are marked."""
    parts, place, is_single, is_double = [], 0, False, False
    while place < len(source):
        sign = source[place]
        if not is_single and source.startswith("\\$", place):
            parts.append(_LITERAL)
            place += 2
            continue
        if not is_single and sign == "\\":
            parts.append(source[place : place + 2])
            place += 2
            continue
        is_single ^= sign == "'" and not is_double
        is_double ^= sign == '"' and not is_single
        parts.append(_LITERAL if sign == "$" and is_single else sign)
        place += 1
    return "".join(parts)


def _unquoted(words: str | tuple[str, ...]) -> str:
    """Return words, or those of a text, as they are written where each is to stay one."""
    several = words if isinstance(words, tuple) else split_bare(words)
    return " ".join(f'"{_escaped(word)}"' for word in several)


def _escaped(value: str) -> str:
    """Return a value as it is written between double quotes; what the shell knows stays open."""
    return re.sub(r'([\\"])', r"\\\1", value).replace(_LITERAL, "\\$")
