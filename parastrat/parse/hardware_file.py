"""Hardware that a user stored: the file of ``parastrat probe -o``, written and read."""

from __future__ import annotations

import math
import tomllib
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from parastrat.errors import ProfileError
from parastrat.hardware import Hardware
from parastrat.records import build, field_types, plain, without_none

SCHEMA = "parastrat.hardware/1"

#: figures that nothing can be computed without
_POSITIVE = (
    "devices_per_node",
    "num_nodes",
    "scale_up_devices",
    "device.memory_bytes",
    "device.usable_memory_bytes",
    "device.memory_bytes_per_s",
    "device.matmul.ceiling",
    "device.whole_products",
    "device.whole_memory",
    "device.fresh_bytes_per_s",
    "scale_up.bytes_per_s",
    "scale_out.bytes_per_s",
)


def hardware_toml(hardware: Hardware) -> str:
    """Return hardware as the text of a file that ``read_hardware_file`` reads back, equal."""
    import tomli_w  # noqa: PLC0415 - only writing needs it; the fast path is to read

    return tomli_w.dumps({"schema": SCHEMA, "hardware": without_none(plain(hardware))})


def read_hardware_file(path: Path) -> Hardware:
    """Read what ``hardware_toml`` wrote, or what a user wrote by hand.

    Raises:
        ProfileError: unreadable, not TOML, of another schema, or with a key or value that is wrong;
            the message names the first such key.
    """
    hint = "write one with: parastrat probe -o FILE"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read hardware file {path}: {error.strerror}", hint=hint) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} is not TOML: {error}", hint=hint) from error
    if table.get("schema") != SCHEMA:
        stated = repr(table["schema"]) if "schema" in table else "none"
        raise ProfileError(f"{path}: schema is {stated}, not {SCHEMA!r}", hint=hint)
    extra = sorted(set(table) - {"schema", "hardware"})
    if extra:
        raise ProfileError(f"{path}: unknown key {extra[0]!r}", hint="facts stand under [hardware]")
    return checked_hardware(table.get("hardware"), str(path))


def checked_hardware(table: Any, where: str) -> Hardware:
    """Make hardware of a table that a user wrote; ``where`` names it in errors.

    Raises:
        ProfileError: for an unknown or missing key, a wrong type or an impossible number.
    """
    fault = _fault(Hardware, table, "hardware") or _impossible(table)
    if fault:
        hint = "compare with a fresh file of: parastrat probe -o FILE"
        raise ProfileError(f"{where}: {fault}", hint=hint)
    return build(Hardware, {"scale_up": None, "scale_out": None} | table)


def _fault(kind: Any, value: Any, key: str) -> str | None:
    """Return what is wrong with a value of a field of this type, or None."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _fault(next(arm for arm in get_args(kind) if arm is not type(None)), value, key)
    if origin is tuple:
        if not isinstance(value, list):
            return f"{key} must be a list, not {value!r}"
        faults = (_fault(get_args(kind)[0], item, f"{key}[{at}]") for at, item in enumerate(value))
        return next((fault for fault in faults if fault), None)
    if is_dataclass(kind) and isinstance(kind, type):
        return _table_fault(kind, value, key)
    if issubclass(kind, Enum):
        names = [str(member.value) for member in kind]
        return None if value in names else f"{key} must be one of {', '.join(names)}, not {value!r}"
    return _scalar_fault(kind, value, key)


def _table_fault(kind: type, value: Any, key: str) -> str | None:
    if not isinstance(value, Mapping):
        return f"{key} must be a table" if value is not None else f"{key} is missing"
    kinds = field_types(kind)
    for name, item in value.items():
        if name not in kinds:
            return f"unknown key {key}.{name}"
        fault = _fault(kinds[name], item, f"{key}.{name}")
        if fault:
            return fault
    needed = (
        field.name
        for field in fields(kind)
        # a field that may be None is left out of TOML, which has no null
        if field.default is MISSING and type(None) not in get_args(kinds[field.name])
    )
    return next((f"{key}.{name} is missing" for name in needed if name not in value), None)


def _scalar_fault(kind: type, value: Any, key: str) -> str | None:
    if kind in (int, float):
        number = isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0:
            noun = "whole number" if kind is int else "number"
            return f"{key} must be a {noun} from 0, not {value!r}"
        return None
    return None if isinstance(value, kind) else f"{key} must be a {kind.__name__}, not {value!r}"


def _impossible(table: Mapping[str, Any]) -> str | None:
    """Return what no machine can be, in a table whose keys and types are right, or None."""
    for path in _POSITIVE:
        value: Any = table
        for name in path.split("."):
            value = value.get(name) if value is not None else None
        if value == 0:
            return f"hardware.{path} must be above 0"
    device = table["device"]
    if device["usable_memory_bytes"] > device["memory_bytes"]:
        return "hardware.device.usable_memory_bytes is above memory_bytes"
    for name in ("whole_products", "whole_memory"):
        if device.get(name, 0) > 1:
            return f"hardware.device.{name} must be a share, at most 1"
    return None
