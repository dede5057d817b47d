"""Frozen values to plain tables (JSON, TOML) and back, without pydantic.

``build`` trusts its input: it reads shipped profiles, which a test validates. What a user wrote goes
through ``parastrat.parse``, which names the line and the mend.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries, enumerations as their values, tuples as lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value


def without_none(value: Any) -> Any:
    """Return a plain table without the keys whose value is None; TOML has no null."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return value


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Return a dataclass's field types, resolved."""
    return get_type_hints(cls)


def build(cls: type[T], table: Mapping[str, Any]) -> T:
    """Make a dataclass of a plain table; the inverse of ``plain``.

    Raises:
        TypeError: for an unknown or missing key.
        ValueError: for a value outside its enumeration.
    """
    resolved: Any = cls
    kinds = field_types(resolved)
    return cls(**{key: _value(kinds.get(key, Any), item) for key, item in table.items()})


def _value(kind: Any, item: Any) -> Any:
    if item is None or kind is Any:
        return item
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        inner = [arm for arm in get_args(kind) if arm is not type(None)]
        return _value(inner[0], item) if len(inner) == 1 else item
    if origin is tuple:
        return tuple(_value(get_args(kind)[0], entry) for entry in item)
    if origin is not None:
        return item
    if isinstance(kind, type) and is_dataclass(kind):
        return build(kind, item)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(item)
    return float(item) if kind is float else item
