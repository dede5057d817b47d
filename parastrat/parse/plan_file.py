"""Read a plan file."""

from __future__ import annotations

import math
import re
import tomllib
from typing import TYPE_CHECKING, Any

from parastrat.errors import PlanFileError, ProfileError
from parastrat.estimate import Estimate
from parastrat.hardware import Hardware
from parastrat.launch import Launch
from parastrat.parse.config_text import toml_fault
from parastrat.parse.form import did_you_mean, foreign_values, record_of, written
from parastrat.parse.hardware_file import checked_hardware
from parastrat.parse.parsed import SCHEMA, ModelFingerprint, Parsed
from parastrat.parse.positions import key_positions
from parastrat.parse.problems import PlanSyntaxError, Problem, raise_problems
from parastrat.plan import Plan
from parastrat.records import plain, without_none
from parastrat.workload import Workload

if TYPE_CHECKING:
    from pathlib import Path

SECTIONS: dict[str, type[Any]] = {
    "model": ModelFingerprint,
    "hardware": Hardware,
    "workload": Workload,
    "plan": Plan,
    "launch": Launch,
    "estimate": Estimate,
}

_MAKE_ONE = "make one with: parastrat recommend MODEL --on HARDWARE -o plan.toml"
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: ``step`` is a sum of floats
_ROUNDING = 1e-9


def read_plan(path: Path) -> Parsed:
    """Read a plan file; ``[plan]`` alone is enough.

    Only the form is checked: a plan that cannot work is returned, for the rules to judge.

    Raises:
        PlanFileError: unreadable, not TOML, or of another schema.
        MalformedPlanError: unknown or missing keys, wrong types, degrees below one, or derived values
            (``strategy``, ``total``, ``step``) that contradict what they are derived from. Its message
            has a line for each.
    """
    text = _text_of(path)
    table = _table_of(path, text)
    positions = key_positions(text)
    raise_problems(path, list(foreign_values(table)), positions)
    raise_problems(path, _top_level(table), positions)
    records: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, cls in SECTIONS.items():
        if name in table:
            record = record_of(cls, table[name], name)
            if isinstance(record, list):
                problems += record
            else:
                records[name] = record
    problems += _contradictions(table, records)
    raise_problems(path, problems, positions)
    stack = table.get("estimate", {}).get("stack")
    return Parsed(**records, stack=stack, positions=positions)


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise PlanFileError(f"there is no plan file {path}", hint=_MAKE_ONE) from error
    except OSError as error:
        hint = "name a plan file that can be read"
        raise PlanFileError(f"cannot read plan file {path}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        hint = f"store it as UTF-8, or {_MAKE_ONE}"
        raise PlanFileError(f"{path} is not UTF-8 text: byte {error.start} is not", hint=hint) from error
    except ValueError as error:
        raise PlanFileError(f"{path!s:.80} is no path: {error}", hint=_MAKE_ONE) from error


def _table_of(path: Path, text: str) -> dict[str, Any]:
    if not text.strip():
        raise PlanFileError(f"{path} is empty", hint=_MAKE_ONE)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        reason, position = toml_fault(text, error)
        if position is None:
            raise PlanFileError(f"{path} is not TOML: {reason}", hint=_MAKE_ONE) from error
        raise PlanSyntaxError(path, reason, position) from error
    except (ValueError, RecursionError) as error:
        # an integer of more digits than Python reads, or brackets nested too deep
        raise PlanFileError(f"{path} cannot be read as TOML: {error}", hint=_MAKE_ONE) from error


def _top_level(table: dict[str, Any]) -> list[Problem]:
    """Check the schema and the sections' names."""
    schema = table.get("schema", SCHEMA)
    if schema != SCHEMA:
        text = f"is {written(schema)}; this parastrat reads {SCHEMA}"
        hint = f'write schema = "{SCHEMA}" if it is a plan, or read it with the parastrat that wrote it'
        return [Problem(key="schema", text=text, hint=hint)]
    problems = []
    known = ["schema", *SECTIONS]
    for name in table:
        if name not in known:
            near = did_you_mean(name, known)
            hint = f"did you mean {near}?" if near else f"a plan file has {', '.join(known)}"
            text = "is not a part of plan files"
            problems.append(Problem(key=name, text=text, hint=hint, code="PS601"))
    if "plan" not in table and not problems:
        problems.append(Problem(key="plan", text="is missing", hint="add the table [plan]", code="PS603"))
    return problems


def _contradictions(table: dict[str, Any], records: dict[str, Any]) -> list[Problem]:
    """Check sections that are right in themselves: what is derived, and what no machine or shell takes."""
    problems = []
    if "plan" in records:
        problems += _differs("plan.strategy", table["plan"], records["plan"].strategy)
    if "hardware" in records:
        problems += _impossible_hardware(records["hardware"])
    if "launch" in records:
        problems += _unusable_environment(records["launch"])
    if "estimate" in records:
        problems += _wrong_estimate(table["estimate"], records["estimate"])
    return problems


def _impossible_hardware(hardware: Hardware) -> list[Problem]:
    try:
        checked_hardware(without_none(plain(hardware)), "")
    except ProfileError as error:
        key, _, text = error.message.removeprefix(": ").partition(" ")
        return [Problem(key=key, text=text, hint=error.hint)]
    return []


def _unusable_environment(launch: Launch) -> list[Problem]:
    return [
        Problem(
            key=f"launch.env.{name}",
            text="is no name of an environment variable",
            hint="use letters, digits and _, not beginning with a digit",
        )
        for name in launch.env
        if not _ENVIRONMENT_NAME.fullmatch(name)
    ]


def _wrong_estimate(table: dict[str, Any], estimate: Estimate) -> list[Problem]:
    names = [
        Problem(key=f"estimate.{name}", text="must be text in quotes", hint=f'write {name} = "..."')
        for name in ("parastrat", "stack")
        if not isinstance(table.get(name, ""), str)
    ]
    memory = _differs("estimate.memory.total", table["memory"], estimate.memory.total)
    return [*names, *memory, *_differs("estimate.time.step", table["time"], estimate.time.step)]


def _differs(key: str, table: dict[str, Any], derived: str | float) -> list[Problem]:
    """Compare a derived key, where it is stated, with what its table yields."""
    name = key.rpartition(".")[2]
    stated = table.get(name, derived)
    same = stated == derived and not isinstance(stated, bool)
    if not same and isinstance(derived, float) and isinstance(stated, float | int):
        same = math.isclose(stated, derived, rel_tol=_ROUNDING) and not isinstance(stated, bool)
    if same:
        return []
    text = f"is {written(stated)}, but the other keys make it {written(derived)}"
    hint = f"remove {name} (it is derived), or mend the keys that it follows from"
    return [Problem(key=key, text=text, hint=hint, code="PS604")]
