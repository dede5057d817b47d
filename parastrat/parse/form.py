"""The form of a table that a user wrote: unknown keys, wrong types, impossible numbers.

The types are those of the records; pydantic checks them, imported on first use because it takes longer
than everything else that a command does.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from parastrat.estimate import Estimate, MemoryEstimate, TimeEstimate
from parastrat.hardware import Hardware
from parastrat.launch import Launch
from parastrat.parse.parsed import ModelFingerprint
from parastrat.parse.problems import Problem
from parastrat.plan import Mesh, Plan
from parastrat.records import field_types
from parastrat.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pydantic import TypeAdapter

T = TypeVar("T")

#: tables within tables; a plan file needs five
_DEPTH = 16
#: whole numbers that TOML promises to carry
_INTEGERS = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a record's table in the file differs from the record."""

    #: field that is not a key of its own, with the keys that stand for it
    flat: Mapping[str, tuple[str, ...]]
    #: keys that are no fields: derived values, checked elsewhere
    derived: tuple[str, ...] = ()


AXES = tuple(axis.name for axis in fields(Mesh))

SHAPES: Mapping[type, Shape] = {
    Plan: Shape(flat={"mesh": AXES}, derived=("strategy",)),
    Hardware: Shape(flat={"name": ("ref",)}),
    Estimate: Shape(flat={}, derived=("parastrat", "stack")),
    MemoryEstimate: Shape(flat={}, derived=("total",)),
    TimeEstimate: Shape(flat={}, derived=("step",)),
}
_PLAIN = Shape(flat={})

#: counts that are one at least
_POSITIVE: Mapping[type, tuple[str, ...]] = {
    Plan: (*AXES, "micro_batch_size", "gradient_accumulation_steps", "virtual_stages"),
    Workload: ("global_batch_size", "sequence_length", "loss_chunks"),
    Launch: ("nodes", "ranks_per_node"),
    ModelFingerprint: ("parameters",),
    Hardware: ("accelerators_per_node",),
}

_NOUNS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "tuple_type": "a list",
    "dataclass_type": "a table",
    "dict_type": "a table",
    "mapping_type": "a table",
}


def foreign_values(value: Any, key: str = "", depth: int = 0) -> Iterator[Problem]:
    """Yield the values that no key of ours can have, whatever its name."""
    if depth > _DEPTH:
        yield Problem(key=key, text=f"is nested more than {_DEPTH} deep", hint="remove it")
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            yield from foreign_values(item, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, int) and value not in _INTEGERS:
        yield Problem(key=key, text="is a whole number beyond 64 bits", hint="write a smaller number")
    elif isinstance(value, float) and math.isnan(value):
        yield Problem(key=key, text="is nan, not a number", hint="write a number")
    elif isinstance(value, date | time):
        yield Problem(key=key, text="is a date", hint=f"put quotes around it, or remove {key}")


def record_of(cls: type[T], table: Any, key: str) -> T | list[Problem]:
    """Make a record of a table, or say everything that is wrong with it."""
    if not isinstance(table, dict):
        hint = f"write a line [{key}] and its keys below"
        return [Problem(key=key, text=f"must be a table, not {written(table)}", hint=hint)]
    unknown = list(_unknown_keys(cls, table, key))
    problems = [problem for problem, _ in unknown]
    record = _checked(cls, table, key)
    if isinstance(record, list):
        # a misspelt key is one mistake: it is not missing as well
        misspelt = {(meant, "is missing") for _, meant in unknown}
        return problems + [fault for fault in record if (fault.key, fault.text) not in misspelt]
    problems += _impossible_counts(cls, table, key)
    return problems or record


def written(value: Any) -> str:
    """Return a value as TOML writes it, shortened."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, (date, time)):
        return value.isoformat()
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def did_you_mean(
    name: str, names: list[str], *, fold: Callable[[str], str] = str.lower, alike: float = 0.6
) -> str | None:
    """Return the nearest of the names, if one is near.

    Args:
        name: what was written.
        names: what might be meant.
        fold: gives a name their case of letters.
        alike: how much of both words is the same at least, of 1.
    """
    return next(iter(get_close_matches(fold(name), names, n=1, cutoff=alike)), None)


def keys_of(cls: type) -> list[str]:
    """Return the keys of a record's table in the file."""
    shape = SHAPES.get(cls, _PLAIN)
    flat = [key for keys in shape.flat.values() for key in keys]
    return [*flat, *(name for name in field_types(cls) if name not in shape.flat), *shape.derived]


def _unknown_keys(cls: type, table: dict[str, Any], key: str) -> Iterator[tuple[Problem, str | None]]:
    """Yield each unknown key with the one that was probably meant."""
    known = keys_of(cls)
    for name, item in table.items():
        if name not in known:
            near = did_you_mean(name, known)
            hint = f"did you mean {near}?" if near else f"the keys of [{key}] are {', '.join(known)}"
            problem = Problem(
                key=f"{key}.{name}", text="is not a key of plan files", hint=hint, code="PS601"
            )
            yield problem, f"{key}.{near}" if near else None
            continue
        inner = _record_type(field_types(cls).get(name))
        if inner and isinstance(item, dict):
            yield from _unknown_keys(inner, item, f"{key}.{name}")
        elif inner and isinstance(item, list):
            for index, element in enumerate(item):
                if isinstance(element, dict):
                    yield from _unknown_keys(inner, element, f"{key}.{name}.{index}")


def _record_type(kind: Any) -> type | None:
    """Return the record that a field holds: one, one or none, or a tuple of them."""
    arms = [kind, *(get_args(kind) if get_origin(kind) is not dict else ())]
    return next((arm for arm in arms if isinstance(arm, type) and is_dataclass(arm)), None)


def _record_table(cls: type, table: Any) -> Any:
    """Return the file's table in the record's form: nested as the fields are, None where absent."""
    if not isinstance(table, dict):
        return table
    shape = SHAPES.get(cls, _PLAIN)
    record: dict[str, Any] = {}
    for name, kind in field_types(cls).items():
        if name in shape.flat:
            record.update(_unflattened(name, kind, shape.flat[name], table))
        elif name in table:
            record[name] = _inner_table(_record_type(kind), table[name])
        elif type(None) in get_args(kind):
            record[name] = None
    return record


def _inner_table(inner: type | None, item: Any) -> Any:
    if inner is None:
        return item
    if isinstance(item, list):
        return [_record_table(inner, element) for element in item]
    return _record_table(inner, item)


def _unflattened(name: str, kind: Any, keys: tuple[str, ...], table: dict[str, Any]) -> dict[str, Any]:
    present = {key: table[key] for key in keys if key in table}
    if _record_type(kind):
        return {name: present}
    return {name: present[keys[0]]} if present else {}


@cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def _checked(cls: Any, table: dict[str, Any], key: str) -> Any:
    """Build the record with strict types: no "8" and no true for 8."""
    from pydantic import ValidationError

    record = _record_table(cls, table)
    try:
        # by way of JSON, because strict types there still read names as choices and lists as tuples
        return _adapter(cls).validate_json(json.dumps(record), strict=True)
    except ValidationError as error:
        return [_type_problem(cls, key, fault) for fault in error.errors(include_url=False)]


def _type_problem(cls: type, key: str, fault: Mapping[str, Any]) -> Problem:
    """Say one of pydantic's findings in the file's words."""
    path = _file_path(cls, [str(part) for part in fault["loc"]])
    name, full, value = path[-1], ".".join([key, *path]), fault["input"]
    if fault["type"] == "missing":
        table = ".".join([key, *path[:-1]])
        return Problem(key=full, text="is missing", hint=f"add {name} to [{table}]", code="PS603")
    if fault["type"] == "enum":
        choices = [
            choice.strip("'") for choice in fault["ctx"]["expected"].replace(" or ", ", ").split(", ")
        ]
        near = did_you_mean(value, choices) if isinstance(value, str) else None
        hint = f'did you mean "{near}"?' if near else f'write one of them, such as {name} = "{choices[0]}"'
        text = f"must be one of {', '.join(choices)}, not {written(value)}"
        return Problem(key=full, text=text, hint=hint)
    noun = _NOUNS.get(fault["type"])
    text = f"must be {noun}, not {written(value)}" if noun else f"is wrong: {fault['msg']}"
    return Problem(key=full, text=text, hint=_type_hint(name, noun, value))


def _type_hint(name: str, noun: str | None, value: Any) -> str:
    if noun in {"a whole number", "a number", "true or false"} and isinstance(value, str):
        return (
            f"write {name} = {value.lower()} without quotes" if _reads_as(noun, value) else f"write {noun}"
        )
    if noun == "a whole number" and isinstance(value, float) and value.is_integer():
        return f"write {name} = {int(value)}"
    if noun == "text in quotes" and not isinstance(value, dict | list):
        return f'write {name} = "{written(value)}"'
    return f"write {noun or 'another value'}"


def _reads_as(noun: str, text: str) -> bool:
    """Return whether a text would be such a value without its quotes."""
    if noun == "true or false":
        return text.lower() in {"true", "false"}
    return re.fullmatch(r"[+-]?\d+" if noun == "a whole number" else r"[+-]?\d+(\.\d+)?", text) is not None


def _file_path(cls: type, path: list[str]) -> list[str]:
    """Return a record's path as the file spells it."""
    flat = SHAPES.get(cls, _PLAIN).flat
    if path[0] not in flat:
        return path
    return path[1:] or list(flat[path[0]][:1])


def _impossible_counts(cls: type, table: dict[str, Any], key: str) -> Iterator[Problem]:
    for name in _POSITIVE.get(cls, ()):
        if table.get(name, 1) < 1:
            text = f"must be 1 or more, not {table[name]}"
            yield Problem(key=f"{key}.{name}", text=text, hint=f"write {name} = 1 or more")
