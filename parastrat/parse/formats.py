"""The keys that a configuration's reader knows: unknown ones, wrong types, impossible choices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.parse.form import did_you_mean, written
from parastrat.parse.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: what transformers and accelerate put a value in place of
_AUTO = "auto"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "number": (int, float),
    "bool": (bool,),
    "text": (str,),
    "list": (list,),
    "table": (dict,),
}
_NOUNS = {
    "int": "a whole number",
    "number": "a number",
    "bool": "true or false",
    "text": "text",
    "list": "a list",
    "table": "a table",
}


def form_problems(file: ConfigFile, known: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is wrong with the form of a configuration.

    Args:
        file: what was read.
        known: the format's profile: ``tables`` with ``name``, ``unknown`` and ``keys``, and ``choices``.
    """
    names = {entry["name"]: entry for entry in known["tables"]}
    for entry in names.values():
        table = file.get(entry["name"]) if entry["name"] else file.table
        if isinstance(table, dict):
            for key in table:
                path = f"{entry['name']}.{key}" if entry["name"] else key
                yield from _of_key(file, entry, path, key)
    for path, choices in known["choices"].items():
        yield from _of_choice(file, path, choices)
    if "environment" in known:
        yield from _of_environment(file, known["environment"])


def _of_environment(file: ConfigFile, known: Mapping[str, Any]) -> Iterator[Problem]:
    for name in file.get("env") or {}:
        if name.startswith(tuple(known["prefixes"])) and name not in known["names"]:
            near = did_you_mean(name, known["names"], fold=str.upper)
            hint = f"did you mean {near}?" if near else f"remove {name}"
            text = "is no variable that NCCL or torch reads"
            yield Problem(key=f"env.{name}", text=text, hint=hint, code="PS607")


def _of_key(file: ConfigFile, entry: Mapping[str, Any], path: str, key: str) -> Iterator[Problem]:
    kinds = entry["keys"]
    if key not in kinds:
        near = did_you_mean(key, list(kinds))
        hint = f"did you mean {near}?" if near else f"remove it; {file.format} has no such key here"
        ignored = entry["unknown"] == "ignored"
        text = "is not read by anybody" if ignored else f"is no key of {file.format}"
        yield Problem(key=path, text=text, hint=hint, code="PS606" if ignored else "PS601")
        return
    kind, value = kinds[key], file.get(path)
    if value is None or kind == "any" or _is_of(kind, value):
        return
    if value == _AUTO and file.format is ConfigFormat.DEEPSPEED:
        return
    hint = f"write {_NOUNS[kind]}"
    if isinstance(value, str) and kind in ("int", "number", "bool"):
        hint = f"write {value.lower()} without quotes" if value else hint
    yield Problem(key=path, text=f"must be {_NOUNS[kind]}, not {written(value)}", hint=hint)


def _is_of(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "bool"
    if kind == "int" and isinstance(value, float):
        return value.is_integer()  # 5e8, as bucket sizes are written
    return isinstance(value, _TYPES[kind])


def _of_choice(file: ConfigFile, path: str, choices: list[Any]) -> Iterator[Problem]:
    value = file.get(path)
    if value is None or value == _AUTO or isinstance(value, dict | list):
        return
    if value is False and "no" in choices:
        return  # how YAML reads an unquoted no
    same = {str(choice).lower(): choice for choice in choices}
    if str(value).lower() in same:
        return
    near = did_you_mean(str(value), [str(choice).lower() for choice in choices])
    hint = f"did you mean {same[near]}?" if near else f"write one of {', '.join(map(str, choices))}"
    yield Problem(key=path, text=f"cannot be {written(value)}", hint=hint)
