"""One file: which format it is of, and what is wrong with it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.check.checked import Checked, of_problem, of_syntax, ordered, placed
from parastrat.check.configs import check_config
from parastrat.check.known import Given, known_case
from parastrat.check.launches import check_jobs, check_script
from parastrat.check.positions import positions_of
from parastrat.check.python_files import check_python
from parastrat.check.recognition import (
    KNOWN,
    PYTHON,
    SCRIPTS,
    SUFFIXES,
    YAML,
    is_torchtitans,
    named_format,
    structure_of,
    text_of,
)
from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.errors import ConfigError, CountError, PlanFileError
from parastrat.parse.config_text import ConfigSyntaxError, toml_structure
from parastrat.parse.jobs import job_format
from parastrat.parse.key_names import with_full_names
from parastrat.parse.plan_file import read_plan
from parastrat.parse.problems import MalformedPlanError, PlanSyntaxError, Problem, located
from parastrat.profiles.files import read_format
from parastrat.tables import check_counts, check_samples

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.parse import Parsed
    from parastrat.parse.config_text import Structure

_BEYOND = "remove it: DeepSpeed's own reader (Hjson) lets it pass, transformers' and accelerate's stop"


def check_file(path: Path, given: Given) -> Checked:
    """Return what is wrong with a file, in its order.

    Raises:
        ConfigError: it cannot be read at all, or is of no format that is known.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} is none of {', '.join(SUFFIXES)}", hint=KNOWN)
    text = text_of(path)
    lines = tuple(text.splitlines())
    structure = _torchtitans(text) if path.suffix == ".toml" else None
    if path.suffix == ".toml" and structure is None:
        return _check_plan(path, lines, given)
    if path.suffix == PYTHON:
        return check_python(path, lines, text, given)
    if path.suffix in SCRIPTS:
        return check_script(path, lines, text, given)
    if path.suffix in YAML and job_format(text) is not None:
        return check_jobs(path, lines, text, given)
    try:
        structure = structure or structure_of(path, text)
    except ConfigSyntaxError as error:
        return Checked(path=path, format=None, findings=(of_syntax(path, error),), lines=lines)
    format_ = named_format(path, structure.table)
    file = with_full_names(
        ConfigFile(
            format=format_,
            table=structure.table,
            positions=structure.positions,
            repeated=structure.repeated,
        ),
        read_format(format_.value),
    )
    checked = check_config(path, lines, file, given)
    if structure.beyond is None:
        return checked
    what, position = structure.beyond
    problem = Problem(key="", text=f"{what} is not JSON", hint=_BEYOND, position=position, code="PS600")
    return replace(checked, findings=ordered([of_problem(path, problem), *checked.findings]))


def _torchtitans(text: str) -> Structure | None:
    """Return a TOML text that is torchtitan's; None for others, which are read as plans."""
    try:
        structure = toml_structure(text)
    except ConfigSyntaxError:
        return None
    return structure if is_torchtitans(structure.table, named=True) else None


def _check_plan(path: Path, lines: tuple[str, ...], given: Given) -> Checked:
    parsed = _parsed_plan(path)
    if isinstance(parsed, list):
        found = tuple(of_problem(path, problem) for problem in parsed)
        return Checked(path=path, format=ConfigFormat.PLAN, findings=found, lines=lines)
    file = ConfigFile(format=ConfigFormat.PLAN, table={}, positions=parsed.positions)
    judged, unknown = known_case(parsed, replace(given, folder=path.parent))
    found_ = [
        placed(path, each, next(iter(positions_of(file, columns)), None), parsed.positions)
        for each, columns in judged
    ]
    return Checked(path=path, format=ConfigFormat.PLAN, findings=ordered(found_), lines=lines, open=unknown)


def _parsed_plan(path: Path) -> Parsed | list[Problem]:
    """Return a plan file's plan, or what is wrong with its form, or with numbers that no job has."""
    try:
        parsed = read_plan(path)
        return _uncountable(parsed) or parsed
    except MalformedPlanError as error:
        return list(error.problems)
    except PlanSyntaxError as error:
        return [Problem(key="", text=error.reason, hint=error.hint, position=error.position, code="PS600")]
    except PlanFileError as error:
        return [Problem(key="", text=error.message, hint=error.hint, code="PS600")]


def _uncountable(parsed: Parsed) -> list[Problem]:
    part = "plan"
    try:
        if parsed.plan is not None:
            check_counts(parsed.plan)
        part = "workload"
        if parsed.workload is not None:
            check_samples(parsed.workload)
    except CountError as error:
        keys = [f"{part}.{name}" for name in error.fields]
        key = next((key for key in keys if key in parsed.positions), part)
        problem = Problem(key=key, text=f"cannot be counted: {error.message}", hint=error.hint)
        return [located(problem, parsed.positions)]
    return []
