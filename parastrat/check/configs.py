"""A configuration, key by key: what its form lacks, and what file, plan and case rules say of it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.check.beside import beside
from parastrat.check.checked import Checked, of_problem, ordered, placed
from parastrat.check.known import Given, known_case
from parastrat.check.positions import positions_of
from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.parse.formats import form_problems
from parastrat.parse.frameworks import deepspeed_part, in_accelerates_words
from parastrat.parse.megatron import megatron_problems
from parastrat.parse.plain_values import with_plain_values
from parastrat.parse.problems import Problem, located
from parastrat.parse.torchtitan import with_later_names
from parastrat.profiles.files import read_format
from parastrat.rules import RULES, FileRule
from parastrat.rules.rule import finding

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.finding import Finding


#: for those who ask parastrat for a plan
_FLAGS = re.compile(r" \(--[^()]*\)")


def check_config(path: Path, lines: tuple[str, ...], file: ConfigFile, given: Given) -> Checked:
    """Return what is wrong with a configuration that was read; ``lines`` are its file's."""
    problems = [
        Problem(key=key, text="stands twice", hint="remove one of them", code="PS605")
        for key in file.repeated
    ]
    known = read_format(file.format.value)
    problems += form_problems(file, known)
    if file.get("megatron") is not None:
        problems += megatron_problems(file.get("megatron"), read_format("megatron")["tables"][0]["keys"])
    found = [of_problem(path, located(problem, file.positions)) for problem in problems]
    hardware = given.hardware or given.usual_hardware
    devices = None if hardware is None else hardware.world_size
    capability = None if hardware is None else hardware.device.compute_capability
    file = replace(with_plain_values(file, known), devices=devices, compute_capability=capability)
    if file.format is ConfigFormat.TORCHTITAN:
        file = with_later_names(file)
    if file.format is ConfigFormat.SCRIPT:
        launch = beside(file, path.parent)
        file = launch.file
        found += [placed(path, finding(rule, hit), hit.key, file.positions) for rule, hit in launch.hits()]
    inner = deepspeed_part(file)
    found += [
        placed(path, finding(rule, hit), hit.key, part.positions)
        for part in (file, inner)
        if part is not None
        for rule in RULES
        if isinstance(rule, FileRule)
        for hit in (rule.hits(part) if part is file else map(in_accelerates_words, rule.hits(part)))
    ]
    judged, unknown = known_case(file, given)
    for rule_finding, columns in judged:
        key = next(iter(positions_of(file, columns)), None) or _variable_of(file, rule_finding)
        fix = _FLAGS.sub("", rule_finding.fix)
        found.append(placed(path, replace(rule_finding, fix=fix), key, file.positions))
    return Checked(path=path, format=file.format, findings=ordered(found), lines=lines, open=unknown)


def _variable_of(file: ConfigFile, found: Finding) -> str | None:
    """Return the key of the variable that a finding names."""
    named = (f"env.{name}" for name in file.get("env") or {} if name in found.message)
    return next(named, None)
