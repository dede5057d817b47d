"""Configurations of torchtitan in Python, as its releases after 0.2.2 take them: one for each function.

Read as syntax; neither the file nor torchtitan is imported.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from parastrat.config_file import OPEN, ConfigFile, ConfigFormat
from parastrat.parse.python_reader import Reader
from parastrat.parse.python_values import Record
from parastrat.rules.torchtitan_models import BASELINES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from parastrat.parse.python_source import Source

TRAINER = "Trainer.Config"
#: what stands for the class of a section that a configuration has none of
NONE = "None"
_MODEL, _ADAMW, _CHUNKED = "model_registry", "default_adamw", "ChunkedLossWrapper.Config"
_REGISTRY = re.compile(r"torchtitan\.models\.(?P<family>\w+)(?:\.config_registry)?\.(?P<name>\w+)")
_OF_TRAINERS = re.compile(r"torchtitan\..*(?:Trainer|Controller)\.Config")
#: keywords of model_registry that rules read
_OF_MODEL = ("family", "flavor", "converters", "moe_comm_backend", "non_blocking_capacity_factor")
_OF_LOSS = ("num_chunks",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonConfig:
    """What a function returns."""

    function: str
    file: ConfigFile
    #: functions of the same file that it begins with
    bases: tuple[str, ...]
    #: whether it is seen to be of the trainer's own class: annotations may name a class that others extend
    is_made: bool


def python_configs(
    source: Source, known: Mapping[str, Any], *, of_now: bool = True
) -> Iterator[PythonConfig]:
    """Yield the configurations of a file that are of torchtitan's own trainer.

    Args:
        source: the file.
        known: the format's profile.
        of_now: whether what is not stated is what the last version fills in; open otherwise.
    """
    reader = Reader(source, partial(_made, known))
    for name, function in source.functions.items():
        if _needs_arguments(function.args):
            continue
        value = reader.result_of(name)
        is_typed = source.dotted(function.returns) == f"torchtitan.trainer.{TRAINER}"
        if isinstance(value, Record) and (value.made_by == TRAINER or (is_typed and not value.made_by)):
            file = _file_of(value, source.place(function), known, of_now=of_now)
            made = value.made_by == TRAINER
            yield PythonConfig(function=name, file=file, bases=value.bases, is_made=made)


def returns_config(source: Source, function: ast.FunctionDef) -> bool:
    """Whether a function returns a configuration of one of torchtitan's trainers, as far as one sees."""
    values = [function.returns]
    values += [
        each.value.func
        for each in ast.walk(function)
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Call)
    ]
    return any(_OF_TRAINERS.fullmatch(source.dotted(each)) for each in values)


def class_named(full: str, known: Mapping[str, Any]) -> str:
    """Return the class of the format's that has a full name; empty for any other."""
    for entry in known["tables"]:
        inner = full.removeprefix(f"{entry['module']}.")
        if inner != full and re.fullmatch(rf"(?:[a-z_0-9]+\.)*{re.escape(entry['name'])}", inner):
            return str(entry["name"])
    return ""


def _needs_arguments(given: ast.arguments) -> bool:
    required = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    return required > 0 or None in given.kw_defaults


def _made(known: Mapping[str, Any], full: str, arguments: Sequence[Any], keywords: Record) -> Record | None:
    """Return the record of a call that torchtitan's words make; None for what is not its own."""
    owner, colon, name = full.partition(":")
    if colon:
        default = known["sections"].get(name) if owner == TRAINER else None
        return None if default is None else Record(made_by=default)
    made_by = class_named(full, known)
    if made_by:
        keywords.made_by = made_by
        # positional arguments are no arguments: Python stops at them
        keywords.rest_open = keywords.rest_open or bool(arguments)
        return keywords
    if re.fullmatch(r"torchtitan\.components\.optimizer(?:\.\w+)?\.default_adamw", full):
        keywords.made_by = _ADAMW
        return keywords
    found = _REGISTRY.fullmatch(full)
    if found is None:
        return None
    if found["name"] == _MODEL:
        return _model(found["family"], arguments, keywords)
    is_shipped = ".config_registry." in full and not (arguments or keywords.fields)
    return _shipped(found["family"], found["name"], keywords.place) if is_shipped else None


def _model(family: str, arguments: Sequence[Any], keywords: Record) -> Record:
    keywords.made_by, keywords.settled = _MODEL, True
    keywords.fields["family"] = family
    if arguments:
        keywords.fields["flavor"] = arguments[0]
    keywords.rest_open = keywords.rest_open or len(arguments) > 1
    return keywords


def _shipped(family: str, function: str, place: tuple[int, int]) -> Record | None:
    """Return what is known of a configuration of torchtitan's: its model, AdamW, a loss in chunks."""
    if family not in {baseline.family for baseline in BASELINES.values()}:
        return None
    made: dict[str, Any] = {}
    for baseline in BASELINES.values():
        if (baseline.family, baseline.function) == (family, function):
            fields = {"family": family, "flavor": baseline.flavor}
            made = {
                "model_spec": Record(
                    made_by=_MODEL, fields=fields, rest_open=True, settled=True, place=place
                ),
                "optimizer": Record(made_by=_ADAMW, rest_open=True, place=place),
                "loss": Record(made_by=_CHUNKED, place=place),
            }
    return Record(made_by=TRAINER, fields=made, rest_open=True, place=place)


def _file_of(
    record: Record, place: tuple[int, int], known: Mapping[str, Any], *, of_now: bool
) -> ConfigFile:
    """Return a configuration with its sections as tables."""
    keys = {entry["name"]: list(entry["keys"]) for entry in known["tables"]}
    sections = {name: keys[made_by] for name, made_by in known["sections"].items()}
    sections |= {"model_spec": list(_OF_MODEL), "loss": list(_OF_LOSS)}
    table: dict[str, Any] = {}
    positions: dict[str, tuple[int, int]] = {}
    for name, fields in sections.items():
        value = record.fields.get(name, OPEN if record.rest_open or not of_now else None)
        if value is None and name not in record.fields:
            value = Record(made_by=known["sections"].get(name, ""))
        table[name] = _table(value, fields, of_now=of_now)
        at = record.places.get(name, record.place if name in record.fields else place)
        positions[name] = at
        if isinstance(value, Record):
            positions[f"{name}.class"] = at
            positions |= {f"{name}.{key}": where for key, where in value.places.items()}
    return ConfigFile(format=ConfigFormat.TORCHTITAN_PYTHON, table=table, positions=positions)


def _table(value: Any, fields: list[str], *, of_now: bool) -> dict[str, Any]:
    """Return a section as a table with the name of its class."""
    if value is None:
        return {"class": NONE}
    if not isinstance(value, Record):
        return dict.fromkeys(["class", *fields], OPEN)
    rest = dict.fromkeys(fields, OPEN) if value.rest_open or not of_now else {}
    stated = {name: _plain(each) for name, each in value.fields.items()}
    return {**rest, **stated, "class": value.made_by or OPEN}


def _plain(value: Any) -> Any:
    """Return a value with the names of classes where calls of them stand."""
    if isinstance(value, Record):
        return value.made_by or OPEN
    if isinstance(value, list):
        plain = [_plain(each) for each in value]
        return OPEN if OPEN in plain else plain
    return value
