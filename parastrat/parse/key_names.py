"""The full names of keys that a reader takes in another form: older, shorter, or by their beginning."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.config_file import ConfigFile


def with_full_names(file: ConfigFile, known: Mapping[str, Any]) -> ConfigFile:
    """Return a file whose keys are written out, where its reader takes less.

    A table may have an older name, its prefix may be left out, and an option may be a letter or any
    beginning that no other has.
    """
    table, positions = dict(file.table), dict(file.positions)
    for old, new in known.get("aliases", {}).items():
        if old in table and new not in table:
            table[new] = table.pop(old)
            inside = {key: place for key, place in positions.items() if f"{key}.".startswith(f"{old}.")}
            positions |= {new + key.removeprefix(old): place for key, place in inside.items()}
    for entry in known["tables"]:
        name, section = entry["name"], table.get(entry["name"])
        if not isinstance(section, dict):
            continue
        full = {key: full_name(key, entry, section) for key in section}
        table[name] = {full[key]: value for key, value in section.items()}
        for key in section:
            if full[key] != key:
                positions[f"{name}.{full[key]}"] = positions.get(f"{name}.{key}", (1, 1))
    return replace(file, table=table, positions=positions)


def full_name(key: str, entry: Mapping[str, Any], section: Mapping[str, Any]) -> str:
    """Return the key that a reader takes a key for; the key itself where that stands there as well."""
    keys, prefix = entry["keys"], entry.get("prefix")
    full = key
    if prefix is not None and prefix + key in keys:
        full = prefix + key
    elif key in entry.get("short", {}):
        full = entry["short"][key]
    elif entry.get("abbreviated") and key not in keys:
        begun = [known for known in keys if known.startswith(key)]
        full = begun[0] if len(begun) == 1 else key
    return key if full in section else full
