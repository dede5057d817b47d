"""Numbers and switches that a configuration's reader takes as text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.config_file import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.config_file import ConfigFile

#: what transformers and accelerate put a value in place of
AUTO = "auto"
#: a number as text
DIGITS = "digits"
#: how a switch may be written as text, or as a number
_SWITCHES = {
    **dict.fromkeys(("y", "yes", "t", "true", "on", "1"), True),
    **dict.fromkeys(("n", "no", "f", "false", "off", "0"), False),
}


def with_plain_values(file: ConfigFile, known: Mapping[str, Any]) -> ConfigFile:
    """Return a file with numbers and switches where its reader takes text for them."""
    table, quoted = dict(file.table), set()
    for entry in known["tables"]:
        name, section = entry["name"], table.get(entry["name"]) if entry["name"] else table
        if not isinstance(section, dict):
            continue
        plain = {key: _plain(entry["keys"], key, section[key]) for key in section}
        changed = {key for key in section if isinstance(section[key], str) and plain[key] != section[key]}
        quoted |= {f"{name}.{key}" if name else key for key in changed}
        table = {**table, name: plain} if name else plain
    return replace(file, table=table, quoted=frozenset(quoted))


def _plain(kinds: Mapping[str, str], key: str, value: Any) -> Any:
    accepted = kinds.get(key, "").split(" or ")
    read = [from_text(kind, value) for kind in accepted if kind in ("switch", DIGITS)]
    return next((each for each in read if each is not None), value)


def from_text(kind: str, value: Any) -> Any:
    """Return what a reader makes of a value that is written as text; None where it makes nothing of it."""
    text = str(value).lower()
    if kind == "switch":
        return _SWITCHES.get(text)
    if kind == DIGITS:
        return whole_number(value)
    return text if text == AUTO else None
