"""The words of a Python file that are torchtitan's: keywords of its classes and their attributes."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.config_file import OPEN, ConfigFile, ConfigFormat
from parastrat.parse.formats import form_problems
from parastrat.parse.problems import Problem, located
from parastrat.parse.python_values import constant, joined, signed
from parastrat.parse.torchtitan_python import TRAINER, class_named

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from parastrat.parse.python_source import Source

_CONFIG = f"torchtitan.trainer.{TRAINER}"
#: a section whose classes differ is judged by the keys of all of them
_ALIKE = {"SelectiveAC.Config": ("FullAC.Config", "MemoryBudgetAC.Config")}
#: sections whose classes nothing of torchtitan's own extends
_SETTLED = frozenset({"comm", "debug", "lr_scheduler", "parallelism", "profiler", "training"})
#: names that every configuration has beside its fields
_METHODS = frozenset({"build", "to_dict", "traverse", "maybe_log"})
_DEPTH = 40
_KEYWORDS = "write it with its keyword: the fields of torchtitan's classes have no order"


def call_problems(source: Source, known: Mapping[str, Any], made: Container[str]) -> Iterator[Problem]:
    """Yield what is wrong with the words of a file, each at its place.

    Args:
        source: the file.
        known: the format's profile.
        made: functions that are seen to make configurations of torchtitan's own trainer.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield from _of_call(source, known, node)
    sections = _usual_sections(source, known)
    for function in source.functions.values():
        values = {
            id(target): node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
        }
        is_made = function.name in made
        for node, owner in _attributes(source, function, is_made=is_made):
            if not is_made and owner not in _SETTLED:
                continue
            made_by = sections.get(owner, "") if owner else TRAINER
            yield from _of_attribute(source, known, made_by, node, values.get(id(node)))


def _of_call(source: Source, known: Mapping[str, Any], node: ast.Call) -> Iterator[Problem]:
    full = source.dotted(node.func)
    made_by = class_named(full, known)
    gone = known["classes"].get(full.removesuffix(".Config"))
    if gone is not None:
        yield Problem(
            key=full.removesuffix(".Config").rpartition(".")[2],
            text="is a class of earlier versions; later ones have none of the name",
            hint=f"write {gone}",
            position=source.place(node),
            code="PS608",
        )
    if not made_by:
        return
    for argument in node.args[:1]:
        if not isinstance(argument, ast.Starred):
            yield Problem(
                key=made_by, text="takes keywords alone", hint=_KEYWORDS, position=source.place(argument)
            )
    stated = [(each.arg, each.value, source.place(each)) for each in node.keywords if each.arg]
    yield from _form(source, known, made_by, stated)


def _of_attribute(
    source: Source,
    known: Mapping[str, Any],
    made_by: str,
    node: ast.Attribute,
    value: ast.expr | None,
) -> Iterator[Problem]:
    """Yield what is wrong with an attribute of a class, read or set to a value."""
    if not made_by or node.attr in _METHODS or node.attr.startswith("__"):
        return
    if any(node.attr in _keys(known, other) for other in _ALIKE.get(made_by, ())):
        return
    yield from _form(source, known, made_by, [(node.attr, value, source.place(node))])


def _form(
    source: Source,
    known: Mapping[str, Any],
    made_by: str,
    stated: Sequence[tuple[str, ast.expr | None, tuple[int, int]]],
) -> Iterator[Problem]:
    table: dict[str, Any] = {name: _constant(source, value) for name, value, _ in stated}
    positions = {f"{made_by}.{name}": place for name, _, place in stated}
    for part in reversed(made_by.split(".")):
        table = {part: table}
    file = ConfigFile(format=ConfigFormat.TORCHTITAN_PYTHON, table=table, positions=positions)
    for problem in form_problems(file, known):
        yield located(_in_python(problem), positions)


def _in_python(problem: Problem) -> Problem:
    """Return a problem with the mend as Python has it."""
    hint = problem.hint.replace("true", "True").replace("false", "False")
    if hint.startswith("put it in quotes"):
        hint = "write text in quotes"
    return replace(problem, text=problem.text.replace("true or false", "True or False"), hint=hint)


def _constant(source: Source, node: ast.expr | None, depth: int = 0) -> Any:
    """Return the value of a constant expression; anything else is open."""
    value: Any = OPEN
    match node:
        case ast.Constant():
            value = constant(node)
        case ast.UnaryOp() if depth < _DEPTH:
            value = signed(node, _constant(source, node.operand, depth + 1))
        case ast.BinOp() if depth < _DEPTH:
            left, right = (_constant(source, each, depth + 1) for each in (node.left, node.right))
            value = joined(type(node.op), left, right)
        case ast.List() | ast.Tuple() | ast.ListComp():
            value = []
        case ast.Name() if node.id in source.constants and depth < _DEPTH:
            value = _constant(source, source.constants[node.id], depth + 1)
    return value


def _keys(known: Mapping[str, Any], made_by: str) -> Mapping[str, str]:
    return next((entry["keys"] for entry in known["tables"] if entry["name"] == made_by), {})


def _usual_sections(source: Source, known: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the classes of sections that no statement of the file makes of another class."""
    sections = dict(known["sections"])
    for name, value in _section_values(source):
        usual = sections.get(name)
        alike = (usual, *_ALIKE.get(usual or "", ()))
        is_none = isinstance(value, ast.Constant)
        if (
            usual
            and not is_none
            and class_named(source.dotted(getattr(value, "func", None)), known) not in alike
        ):
            del sections[name]
    return sections


def _section_values(source: Source) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr, node.value


def _attributes(
    source: Source, function: ast.FunctionDef, *, is_made: bool
) -> Iterator[tuple[ast.Attribute, str]]:
    """Yield the attributes of configurations in a function, with the section that they are of."""
    configs = set(_configs(source, function, is_made=is_made))
    called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    for node in ast.walk(function):
        if not isinstance(node, ast.Attribute) or id(node) in called:
            continue
        inner = node.value
        if isinstance(inner, ast.Name) and inner.id in configs:
            yield node, ""
        elif (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.value, ast.Name)
            and inner.value.id in configs
        ):
            yield node, inner.attr


def _configs(source: Source, function: ast.FunctionDef, *, is_made: bool) -> Iterator[str]:
    """Yield the names in a function that stand for configurations of torchtitan's own trainer."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    yield from (each.arg for each in arguments if source.dotted(each.annotation) == _CONFIG)
    is_typed = is_made or source.dotted(function.returns) == _CONFIG
    for node in ast.walk(function):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) and is_typed:
            yield node.value.id
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = source.functions.get(getattr(node.value.func, "id", ""))
            if _CONFIG in (source.dotted(node.value.func), made and source.dotted(made.returns)):
                yield from (each.id for each in node.targets if isinstance(each, ast.Name))
