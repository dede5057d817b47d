"""A stack with other constants: the file of ``parastrat validate -o``, written and read."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parastrat.errors import ProfileError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SCHEMA = "parastrat.stack/1"

#: constants that are shares, and others, which are above 0
SHARES = ("dp_overlap", "zero_overlap", "fsdp_overlap", "tp_overlap", "async_tp_overlap", "pp_overlap")
_POSITIVE = (
    "network_efficiency",
    "elementwise_factor",
    "dispatched_factor",
    "matmul_factor",
    "attention_factor",
    "launches_per_operator",
    "launches_per_dispatch",
    "launches_per_expert",
    "fp8_cast_bytes",
    "step_constant_s",
    "time_spread",
)
_HINT = "write one with: parastrat validate CASES.csv -o FILE"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackChange:
    """A shipped stack, and what is otherwise."""

    base: str
    #: by field of ``Stack``
    constants: Mapping[str, float]
    #: what the constants come from
    source: str


def stack_toml(change: StackChange) -> str:
    """Return a changed stack as the text of a file that ``read_stack_file`` reads back, equal."""
    import tomli_w  # noqa: PLC0415 - only writing needs it; the fast path is to read

    facts = {"schema": SCHEMA, "base": change.base, "source": change.source}
    return tomli_w.dumps({**facts, "constants": dict(change.constants)})


def read_stack_file(path: Path) -> StackChange:
    """Read what ``stack_toml`` wrote, or what a user wrote by hand.

    Raises:
        ProfileError: unreadable, not TOML, of another schema, or with a key or value that is wrong;
            the message names the first such key.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read stack file {path}: {error.strerror}", hint=_HINT) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} is not TOML: {error}", hint=_HINT) from error
    fault = _fault(table)
    if fault:
        raise ProfileError(f"{path}: {fault}", hint=_HINT)
    return StackChange(**{name: table[name] for name in StackChange.__slots__})


def _fault(table: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a file's table, or None."""
    if table.get("schema") != SCHEMA:
        stated = repr(table["schema"]) if "schema" in table else "none"
        return f"schema is {stated}, not {SCHEMA!r}"
    for name in ("base", "source"):
        if not isinstance(table.get(name), str):
            return f"{name} must be a text" if name in table else f"{name} is missing"
    extra = sorted(set(table) - {"schema", *StackChange.__slots__})
    if extra:
        return f"unknown key {extra[0]!r}; constants stand under [constants]"
    constants = table.get("constants")
    if not isinstance(constants, dict):
        return "[constants] must be a table" if "constants" in table else "[constants] is missing"
    faults = (_constant_fault(name, value) for name, value in constants.items())
    return next((fault for fault in faults if fault), None)


def _constant_fault(name: str, value: Any) -> str | None:
    if name not in (*SHARES, *_POSITIVE):
        return f"unknown key constants.{name}"
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if name in SHARES:
        right, said = is_number and 0 <= value <= 1, "a share from 0 to 1"
    else:
        right, said = is_number and value > 0, "a number above 0"
    return None if right else f"constants.{name} must be {said}, not {value!r}"
