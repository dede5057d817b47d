"""One file: which format it is of, what its form lacks, and what the rules say of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parastrat.check.known import Given, known_case
from parastrat.check.positions import positions_of
from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.errors import ConfigError, PlanFileError
from parastrat.finding import Finding, Hit, Severity
from parastrat.parse.config_text import ConfigSyntaxError, json_structure, yaml_structure
from parastrat.parse.formats import form_problems
from parastrat.parse.launch_script import script_table
from parastrat.parse.plan_file import read_plan
from parastrat.parse.problems import MalformedPlanError, Problem, located
from parastrat.profiles.files import read_format
from parastrat.rules import RULES, FileRule, rule_named
from parastrat.rules.rule import finding

if TYPE_CHECKING:
    from collections.abc import Iterator

#: keys by which a JSON or YAML file shows whose it is
_SIGNS = {
    ConfigFormat.DEEPSPEED: {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "zero_optimization",
        "gradient_accumulation_steps",
        "fp16",
        "bf16",
    },
    ConfigFormat.ACCELERATE: {
        "compute_environment",
        "distributed_type",
        "num_processes",
        "num_machines",
        "machine_rank",
        "fsdp_config",
        "deepspeed_config",
        "parallelism_config",
        "mixed_precision",
    },
}
_SCRIPTS = (".sh", ".sbatch", ".slurm", ".bash")
_SUFFIXES = (".toml", ".json", ".yaml", ".yml", *_SCRIPTS)
#: folders of other people's files
_FOREIGN = frozenset({"node_modules", "__pycache__", "venv", "site-packages"})
_KNOWN = (
    "parastrat check reads plan.toml, accelerate's YAML or JSON, DeepSpeed's JSON, and torchrun's scripts"
)


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


def config_files(path: Path) -> tuple[Path, ...]:
    """Return the path itself, or the files of a folder whose format is known by their content.

    Raises:
        ConfigError: there is nothing there.
    """
    if path.is_file():
        return (path,)
    if not path.is_dir():
        raise ConfigError(f"there is no {path}", hint="name files or folders that exist")
    return tuple(file for file in _files_below(path) if _is_config(file))


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield a folder's files of the known suffixes, without what is hidden or was not written here."""
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in _FOREIGN)
        yield from (Path(root) / name for name in sorted(names) if name.endswith(_SUFFIXES))


def _is_config(path: Path) -> bool:
    """Whether a file of a folder is one that the checker reads; a broken one is told when it is named."""
    try:
        text = _text_of(path)
        if path.suffix == ".toml":
            return 'schema = "parastrat.plan' in text
        if path.suffix in _SCRIPTS:
            return "torchrun" in script_table(text)[0]
        return _format_of(path, _structure(path, text).table) is not None
    except ConfigError:
        return False


def check_file(path: Path, given: Given) -> Checked:
    """Return what is wrong with a file, in its order.

    Raises:
        ConfigError: it cannot be read at all, or is of no format that is known.
    """
    if path.suffix not in _SUFFIXES:
        raise ConfigError(f"{path} is none of {', '.join(_SUFFIXES)}", hint=_KNOWN)
    text = _text_of(path)
    lines = tuple(text.splitlines())
    if path.suffix == ".toml":
        return _check_plan(path, lines, given)
    if path.suffix in _SCRIPTS:
        return _check_script(path, lines, text, given)
    try:
        structure = _structure(path, text)
    except ConfigSyntaxError as error:
        problem = Problem(
            key="", text=error.message, hint=error.hint, position=error.position, code="PS600"
        )
        return Checked(path=path, format=None, findings=(_of_problem(path, problem),), lines=lines)
    format_ = _format_of(path, structure.table)
    if format_ is None:
        raise ConfigError(f"{path} has no key of a configuration that parastrat knows", hint=_KNOWN)
    file = ConfigFile(
        format=format_,
        table=structure.table,
        positions=structure.positions,
        repeated=structure.repeated,
    )
    return _check_config(path, lines, file, given)


def _check_script(path: Path, lines: tuple[str, ...], text: str, given: Given) -> Checked:
    table, positions = script_table(text)
    if "torchrun" not in table and "sbatch" not in table:
        raise ConfigError(f"{path} starts no torchrun and asks Slurm for nothing", hint=_KNOWN)
    file = ConfigFile(format=ConfigFormat.SCRIPT, table=table, positions=positions)
    return _check_config(path, lines, file, given)


def _check_config(path: Path, lines: tuple[str, ...], file: ConfigFile, given: Given) -> Checked:
    problems = [
        Problem(key=key, text="stands twice", hint="remove one of them", code="PS605")
        for key in file.repeated
    ]
    problems += form_problems(file, read_format(file.format.value))
    found = [_of_problem(path, located(problem, file.positions)) for problem in problems]
    found += [
        _placed(path, finding(rule, hit), hit.key, file.positions)
        for rule in RULES
        if isinstance(rule, FileRule)
        for hit in rule.hits(file)
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
    try:
        parsed = read_plan(path)
    except MalformedPlanError as error:
        found = tuple(_of_problem(path, problem) for problem in error.problems)
        return Checked(path=path, format=ConfigFormat.PLAN, findings=found, lines=lines)
    except PlanFileError as error:
        problem = Problem(key="", text=error.message, hint=error.hint, code="PS600")
        return Checked(
            path=path, format=ConfigFormat.PLAN, findings=(_of_problem(path, problem),), lines=lines
        )
    file = ConfigFile(format=ConfigFormat.PLAN, table={}, positions=parsed.positions)
    judged, unknown = known_case(parsed, replace(given, folder=path.parent))
    found_ = [
        _placed(path, each, next(iter(positions_of(file, columns)), None), parsed.positions)
        for each, columns in judged
    ]
    return Checked(
        path=path, format=ConfigFormat.PLAN, findings=_ordered(found_), lines=lines, open=unknown
    )


def _structure(path: Path, text: str) -> Any:
    return json_structure(text) if path.suffix == ".json" else yaml_structure(text)


def _format_of(path: Path, table: dict[str, Any]) -> ConfigFormat | None:
    """Return whose keys a file has most of; YAML is never DeepSpeed's."""
    counts = {
        format_: len(signs & table.keys())
        for format_, signs in _SIGNS.items()
        if path.suffix == ".json" or format_ is ConfigFormat.ACCELERATE
    }
    best = max(counts, key=lambda format_: counts[format_])
    return best if counts[best] else None


def _text_of(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text", hint="store it as UTF-8") from error
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="name a file that can be read"
        ) from error


def _of_problem(path: Path, problem: Problem) -> Finding:
    rule = rule_named(problem.code)
    if rule is None:
        raise AssertionError(f"no rule {problem.code}")
    message = f"{problem.key} {problem.text}" if problem.key else problem.text
    line, column = problem.position or (None, None)
    return replace(
        finding(rule, Hit(message=message, fix=problem.hint)), path=str(path), line=line, column=column
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
