"""One file: which format it is of, what its form lacks, and what the rules say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from parastrat.check.beside import beside
from parastrat.check.known import Given, known_case
from parastrat.check.positions import positions_of
from parastrat.check.recognition import (
    KNOWN,
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
from parastrat.finding import Finding, Hit, Ignored, Severity
from parastrat.parse.config_text import ConfigSyntaxError, toml_structure, yaml_structure
from parastrat.parse.formats import form_problems, with_plain_values
from parastrat.parse.frameworks import deepspeed_part, in_accelerates_words
from parastrat.parse.key_names import with_full_names
from parastrat.parse.launch_script import script_tables
from parastrat.parse.launchers import LAUNCHERS
from parastrat.parse.megatron import megatron_options
from parastrat.parse.plan_file import read_plan
from parastrat.parse.problems import MalformedPlanError, PlanSyntaxError, Problem, located
from parastrat.parse.torchtitan import with_later_names
from parastrat.parse.trainjob import is_trainjob, pod_script, trainjob_documents
from parastrat.profiles.files import read_format
from parastrat.rules import RULES, FileRule, rule_named
from parastrat.rules.rule import finding
from parastrat.tables import check_counts, check_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from parastrat.parse import Parsed

_BEYOND = "remove it: DeepSpeed's own reader (Hjson) lets it pass, transformers' and accelerate's stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the rules say of one file."""

    path: Path
    format: ConfigFormat | None
    findings: tuple[Finding, ...]
    #: the file's lines, to show where a finding is
    lines: tuple[str, ...]
    #: codes of rules that need facts which nobody stated
    open: tuple[str, ...] = ()
    #: what the settings leave out, and how many findings they do not ask for
    ignored: tuple[Ignored, ...] = ()
    not_selected: int = 0
    #: where the settings stand
    settings: Path | None = None


def check_file(path: Path, given: Given) -> Checked:
    """Return what is wrong with a file, in its order.

    Raises:
        ConfigError: it cannot be read at all, or is of no format that is known.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} is none of {', '.join(SUFFIXES)}", hint=KNOWN)
    text = text_of(path)
    lines = tuple(text.splitlines())
    if path.suffix == ".toml" and not _is_torchtitans(text):
        return _check_plan(path, lines, given)
    if path.suffix in SCRIPTS:
        return _check_script(path, lines, text, given)
    if path.suffix in YAML and is_trainjob(text):
        return _check_trainjobs(path, lines, text, given)
    try:
        structure = structure_of(path, text)
    except ConfigSyntaxError as error:
        return Checked(path=path, format=None, findings=(_of_syntax(path, error),), lines=lines)
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
    checked = _check_config(path, lines, file, given)
    if structure.beyond is None:
        return checked
    what, position = structure.beyond
    problem = Problem(key="", text=f"{what} is not JSON", hint=_BEYOND, position=position, code="PS600")
    return replace(checked, findings=_ordered([_of_problem(path, problem), *checked.findings]))


def _is_torchtitans(text: str) -> bool:
    try:
        return is_torchtitans(toml_structure(text).table, named=True)
    except ConfigSyntaxError:
        # as what a plan file would be
        return False


def _check_script(path: Path, lines: tuple[str, ...], text: str, given: Given) -> Checked:
    """Check each launch of a script with the job that they are of; what is said of both is said once."""
    known, several = read_format(ConfigFormat.SCRIPT.value), []
    for table, positions in script_tables(text, known):
        if table.keys().isdisjoint((*LAUNCHERS, "sbatch", "late")):
            raise ConfigError(f"{path} starts no launcher and asks Slurm for nothing", hint=KNOWN)
        file = ConfigFile(format=ConfigFormat.SCRIPT, table=table, positions=positions)
        several.append(_check_config(path, lines, _with_megatron(with_full_names(file, known)), given))
    first, *others = several
    if not others:
        return first
    found = dict.fromkeys(each for checked in several for each in checked.findings)
    unknown = dict.fromkeys(code for checked in several for code in checked.open)
    return replace(first, findings=_ordered(list(found)), open=tuple(unknown))


def _check_trainjobs(path: Path, lines: tuple[str, ...], text: str, given: Given) -> Checked:
    """Check each TrainJob of a file, and what its pods run as the script that it is."""
    found: list[Finding] = []
    unknown: list[str] = []
    for document in trainjob_documents(text):
        try:
            structure = yaml_structure(document)
        except ConfigSyntaxError as error:
            found.append(_of_syntax(path, error))
            continue
        file = ConfigFile(
            format=ConfigFormat.TRAINJOB,
            table=structure.table,
            positions=structure.positions,
            repeated=structure.repeated,
        )
        parts = [file, *_pod_scripts(file)]
        checked = [_check_config(path, lines, part, given) for part in parts]
        found += [each for part in checked for each in part.findings]
        unknown += [code for part in checked for code in part.open]
    return Checked(
        path=path,
        format=ConfigFormat.TRAINJOB,
        findings=_ordered(list(dict.fromkeys(found))),
        lines=lines,
        open=tuple(dict.fromkeys(unknown)),
    )


def _pod_scripts(file: ConfigFile) -> Iterator[ConfigFile]:
    """Yield the launches of a job's pods, each with its lines' places in the job."""
    text, places = pod_script(file)
    known = read_format(ConfigFormat.SCRIPT.value)
    for table, positions in script_tables(text, known) if text else ():
        placed = {key: places[min(line, len(places)) - 1] for key, (line, _) in positions.items()}
        part = ConfigFile(format=ConfigFormat.SCRIPT, table=table, positions=placed)
        yield _with_megatron(with_full_names(part, known))


def _with_megatron(file: ConfigFile) -> ConfigFile:
    """Return a launch with the options of Megatron-LM, where that is what it starts."""
    (known,) = read_format("megatron")["tables"]
    options = megatron_options(file.get("own") or {}, known["keys"])
    return file if options is None else replace(file, table={**file.table, "megatron": options})


def _of_syntax(path: Path, error: ConfigSyntaxError) -> Finding:
    problem = Problem(key="", text=error.message, hint=error.hint, position=error.position, code="PS600")
    return _of_problem(path, problem)


def _check_config(path: Path, lines: tuple[str, ...], file: ConfigFile, given: Given) -> Checked:
    problems = [
        Problem(key=key, text="stands twice", hint="remove one of them", code="PS605")
        for key in file.repeated
    ]
    known = read_format(file.format.value)
    problems += form_problems(file, known)
    found = [_of_problem(path, located(problem, file.positions)) for problem in problems]
    hardware = given.hardware or given.usual_hardware
    devices = None if hardware is None else hardware.world_size
    file = replace(with_plain_values(file, known), devices=devices)
    if file.format is ConfigFormat.TORCHTITAN:
        file = with_later_names(file)
    if file.format is ConfigFormat.SCRIPT:
        launch = beside(file, path.parent)
        file = launch.file
        found += [_placed(path, finding(rule, hit), hit.key, file.positions) for rule, hit in launch.hits()]
    inner = deepspeed_part(file)
    found += [
        _placed(path, finding(rule, hit), hit.key, part.positions)
        for part in (file, inner)
        if part is not None
        for rule in RULES
        if isinstance(rule, FileRule)
        for hit in (rule.hits(part) if part is file else map(in_accelerates_words, rule.hits(part)))
    ]
    judged, unknown = known_case(file, given)
    for rule_finding, columns in judged:
        key = next(iter(positions_of(file, columns)), None) or _variable_of(file, rule_finding)
        found.append(_placed(path, rule_finding, key, file.positions))
    return Checked(path=path, format=file.format, findings=_ordered(found), lines=lines, open=unknown)


def _variable_of(file: ConfigFile, found: Finding) -> str | None:
    """Return the key of the variable that a finding names."""
    named = (f"env.{name}" for name in file.get("env") or {} if name in found.message)
    return next(named, None)


def _check_plan(path: Path, lines: tuple[str, ...], given: Given) -> Checked:
    parsed = _parsed_plan(path)
    if isinstance(parsed, list):
        found = tuple(_of_problem(path, problem) for problem in parsed)
        return Checked(path=path, format=ConfigFormat.PLAN, findings=found, lines=lines)
    file = ConfigFile(format=ConfigFormat.PLAN, table={}, positions=parsed.positions)
    judged, unknown = known_case(parsed, replace(given, folder=path.parent))
    found_ = [
        _placed(path, each, next(iter(positions_of(file, columns)), None), parsed.positions)
        for each, columns in judged
    ]
    return Checked(
        path=path, format=ConfigFormat.PLAN, findings=_ordered(found_), lines=lines, open=unknown
    )


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


def _of_problem(path: Path, problem: Problem) -> Finding:
    rule = rule_named(problem.code)
    if rule is None:
        raise AssertionError(f"no rule {problem.code}")
    line, column = problem.position or (None, None)
    return replace(
        finding(rule, Hit(message=problem.message, fix=problem.hint)),
        path=str(path),
        line=line,
        column=column,
    )


def _placed(path: Path, found: Finding, key: str | None, positions: Any) -> Finding:
    """Return a finding with the position of its key, or of the nearest table around it."""
    while key and key not in positions:
        key = key.rpartition(".")[0]
    line, column = positions[key] if key else (None, None)
    return replace(found, path=str(path), line=line, column=column)


def _ordered(found: list[Finding]) -> tuple[Finding, ...]:
    severities = list(Severity)
    return tuple(
        sorted(
            found,
            key=lambda each: (each.line or 0, each.column or 0, severities.index(each.severity), each.code),
        )
    )
