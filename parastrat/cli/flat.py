"""Groups of flags as one flat command, and the text of each flag as a value.

typer gets every flag as text. It would otherwise (from 0.29 on) have pydantic convert them, whose import
takes longer than the search.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from typer.core import TyperCommand, TyperGroup

from parastrat.cli.completion import choice_words
from parastrat.errors import UsageError

_Group = TypeVar("_Group")


class TextCommand(TyperCommand):
    """A command that passes text and switches on as they are."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with conversion taken out."""
        return _passing(super().get_params(ctx))


class TextGroup(TyperGroup):
    """A group of commands whose own switches are passed on as they are."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with conversion taken out."""
        return _passing(super().get_params(ctx))


def _passing(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        parameter.process_value = functools.partial(_passed, parameter)
    return parameters


def _passed(parameter: Any, context: Any, value: Any) -> Any:
    """Return text, switches and absence as they are; leave the rest to the parameter's own class."""
    # while a shell asks for completions, what is required may be missing still
    is_absent = value is None and (not parameter.required or context.resilient_parsing)
    if not (is_absent or isinstance(value, str | bool)):
        return type(parameter).process_value(parameter, context, value)
    return value if parameter.callback is None else parameter.callback(context, parameter, value)


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with one parameter for each flag of its groups, as typer wants it.

    A group is a dataclass of flags; other parameters are flags themselves.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[name], kind=kind))
    # arguments in typer's order: those without a default first
    parameters.sort(key=lambda parameter: parameter.default is not inspect.Parameter.empty)
    annotations = {parameter.name: parameter.annotation for parameter in parameters}

    @functools.wraps(command)
    def called(**texts: Any) -> None:
        values = {name: converted(name, annotations[name], text) for name, text in texts.items()}
        arguments = {name: _taken(kind, values) for name, kind in groups.items()}
        command(**arguments, **values)

    shown = [_as_text(parameter) for parameter in parameters]
    called.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return called


def converted(name: str, annotation: Any, value: Any) -> Any:
    """Return a flag's text as a value of its type; what is no text stays.

    Raises:
        UsageError: no such number, a number out of range, or no such choice.
    """
    if not isinstance(value, str):
        return value
    kind, details = _kind_and_details(annotation)
    if kind in (int, float):
        return _number(name, kind, details, value)
    if issubclass(kind, StrEnum):
        return _choice(name, kind, value)
    return Path(value) if kind is Path else value


def _number(name: str, kind: Callable[[str], float], details: Any, text: str) -> float:
    word = "a whole number" if kind is int else "a number"
    try:
        number = kind(text)
    except ValueError:
        raise UsageError(f"{_flag(name)} {text!r} is not {word}", hint=_range(details, word)) from None
    least, most = details.min, details.max
    if (least is not None and number < least) or (most is not None and number > most):
        raise UsageError(f"{_flag(name)} {text} is out of range", hint=_range(details, word))
    return number


def _range(details: Any, word: str) -> str:
    low = f" from {details.min:,}" if details.min is not None else ""
    high = f" to {details.max:,}" if details.max is not None else ""
    return f"give {word}{low}{high}"


def _choice(name: str, kind: type[StrEnum], text: str) -> StrEnum:
    from parastrat.profiles import nearest

    values = [choice.value for choice in kind]
    if text in values:
        return kind(text)
    near = nearest(text, values)
    hint = f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(values)}"
    raise UsageError(f"unknown {_flag(name)} {text!r}", hint=hint)


def _flag(name: str) -> str:
    # a parameter that Python has a name for ends with _
    return f"--{name.rstrip('_').replace('_', '-')}"


def _kind_and_details(annotation: Any) -> tuple[type, Any]:
    """Return the type and typer's details of ``Annotated[type | None, details]``."""
    kind, details = get_args(annotation) if get_origin(annotation) is Annotated else (annotation, None)
    arms = [arm for arm in get_args(kind) if arm is not NoneType] if NoneType in get_args(kind) else [kind]
    return arms[0], details


def _as_text(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as typer shall see it: text, unless it is a switch or a list."""
    kind, details = _kind_and_details(parameter.annotation)
    if kind is bool or get_origin(kind) is list:
        return parameter
    default = parameter.default
    is_open = default is None or default is inspect.Parameter.empty
    if isinstance(kind, type) and issubclass(kind, StrEnum) and details.metavar is None:
        details = copy.copy(details)
        details.metavar = "|".join(choice.value for choice in kind)
        details.autocompletion = choice_words(choice.value for choice in kind)
    text: Any = str if default is not None else str | None
    return parameter.replace(
        annotation=Annotated[text, details], default=default if is_open else str(default)
    )


def _taken(kind: Callable[..., _Group], values: dict[str, Any]) -> _Group:
    """Make a group of its values, and take them out of the others."""
    return kind(**{field.name: values.pop(field.name) for field in fields(kind)})  # type: ignore[arg-type]


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
