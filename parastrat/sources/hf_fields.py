"""The fields of a Hugging Face ``config.json``, with the defaults that transformers puts in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from parastrat.errors import ModelError


class UnknownFormError(ModelError):
    """A config whose family or whose fields have no closed form: only building the model counts it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="it has to be built: pip install 'parastrat[hf]'")


@dataclass(frozen=True, slots=True)
class Config:
    """A config's fields, with errors that name the file and the field."""

    path: Path
    table: Mapping[str, Any]
    #: what the family's class puts in the place of a field that is left out, None where it computes it;
    #: a field that is not among them is not the family's, and is not read
    defaults: Mapping[str, Any]
    #: the family's own names of fields that others call otherwise
    names: Mapping[str, str] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """Return a field as it stands, or its default; None where the family has none of that name.

        Raises:
            ModelError: it stands there under two names, with two values.
        """
        own = self.names.get(name, name)
        known = {own, name, *(other for other, mapped in self.names.items() if mapped == own)}
        stated = [self.table[key] for key in sorted(known) if key in self.table]
        if any(value != stated[0] for value in stated):
            raise ModelError(
                f"{self.path}: {' and '.join(sorted(known & set(self.table)))} are one field, and differ",
                hint="keep one of them",
            )
        if own not in self.defaults:
            return None
        return stated[0] if stated else self.defaults[own]

    def size(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """Return an integer field.

        Raises:
            ModelError: missing without a default, not an integer, less than ``least``.
        """
        value = self.value(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.path}: {name} is missing", hint=f"add {name} to the config")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.path}: {name} is {value!r}, not an integer", hint="correct the config")
        if value < least:
            wanted = "positive" if least else "a count"
            raise ModelError(f"{self.path}: {name} is {value}, not {wanted}", hint="correct the config")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean field; a family without it has it off."""
        value = self.value(name)
        if not isinstance(value, bool | None):
            raise ModelError(
                f"{self.path}: {name} is {value!r}, not true or false", hint="correct the config"
            )
        return bool(value)

    def rate(self, *names: str) -> float:
        """Return the largest of some dropout probabilities; absent ones are 0."""
        values = [self.value(name) or 0.0 for name in names]
        for name, value in zip(names, values, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ModelError(
                    f"{self.path}: {name} is {value!r}, not a number", hint="correct the config"
                )
        return max(values, default=0.0)

    def require(self, name: str, wanted: object) -> None:
        """Check that a field has the one value that the closed form holds for.

        Raises:
            UnknownFormError: it has another.
        """
        value = self.value(name)
        if value != wanted:
            raise UnknownFormError(f"{self.path}: {name} is {value!r}, for which there is no closed form")


@dataclass(frozen=True, slots=True)
class Size:
    """An integer that the config states, or the product of two."""

    name: str
    #: another field to multiply with; either may be null, and the product is 0
    times: str | None = None
    #: None: one that is neither stated nor known is an error
    default: int | None = None
    least: int = 1

    def of(self, config: Config) -> int:
        """Return it."""
        if self.times is None:
            return config.size(self.name, self.default, least=self.least)
        return config.size(self.name, 0, least=0) * config.size(self.times, 0, least=0)


@dataclass(frozen=True, slots=True)
class Flag:
    """A choice that the config states."""

    name: str

    def of(self, config: Config) -> bool:
        """Return it."""
        return config.flag(self.name)


#: fields of an architecture as a family has them: the same for all its models, or as a config says
Fields: TypeAlias = Mapping[str, object]
#: parts of them, to be joined
Table: TypeAlias = dict[str, object]


def resolved(fields: Fields, config: Config) -> dict[str, Any]:
    """Return the values of fields in one config."""
    return {
        name: value.of(config) if isinstance(value, Size | Flag) else value
        for name, value in fields.items()
    }
