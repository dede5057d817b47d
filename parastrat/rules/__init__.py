"""The catalogue of rules, and what they say of a case or of a million plans.

Plan rules reject plans in search and are quoted with the same code and sentence by every report. Case
rules judge one case. A rule that needs an unknown fact cannot be judged and stays silent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.errors import UnknownFactError
from parastrat.finding import Severity
from parastrat.rules import (
    accelerate,
    accelerate_fsdp,
    accelerate_quotes,
    axes,
    backend_rules,
    batch,
    batch_script,
    batch_signals,
    components,
    deepspeed,
    deepspeed_engine,
    deepspeed_filled,
    directives,
    environment,
    environment_values,
    experts,
    exports,
    file_form,
    host_memory,
    launch_options,
    launch_program,
    launch_ranks,
    launch_script,
    launch_together,
    launch_values,
    launcher,
    lightning,
    megatron,
    megatron_options,
    memory,
    mesh,
    modules,
    mpirun,
    network,
    pipeline,
    pod_memory,
    pods,
    precision,
    pytorchjob,
    rank_starts,
    runtime_support,
    scans,
    script_lines,
    slurm_values,
    split_backward,
    torchtitan,
    torchtitan_python,
    trainjob,
    vocabulary,
    whole_sequences,
)
from parastrat.rules.rule import CaseRule, FileRule, Guidance, PlanRule, Rule, finding

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from types import ModuleType

    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.finding import Finding
    from parastrat.units import Mask

__all__ = [
    "CASE_RULES",
    "FAMILIES",
    "PLAN_RULES",
    "RULES",
    "CaseRule",
    "FileRule",
    "Guidance",
    "PlanRule",
    "Rule",
    "findings_of",
    "rejection_masks",
    "rule_named",
]

#: the modules that hold rules
FAMILIES: tuple[ModuleType, ...] = (
    memory,
    host_memory,
    mesh,
    modules,
    axes,
    runtime_support,
    backend_rules,
    network,
    components,
    batch,
    precision,
    vocabulary,
    launcher,
    environment,
    environment_values,
    exports,
    pipeline,
    experts,
    scans,
    slurm_values,
    split_backward,
    torchtitan,
    torchtitan_python,
    file_form,
    accelerate,
    accelerate_fsdp,
    accelerate_quotes,
    deepspeed,
    deepspeed_engine,
    deepspeed_filled,
    directives,
    launch_script,
    launch_ranks,
    launch_values,
    launch_options,
    launch_program,
    megatron,
    megatron_options,
    script_lines,
    batch_script,
    batch_signals,
    rank_starts,
    mpirun,
    lightning,
    launch_together,
    trainjob,
    pods,
    pod_memory,
    pytorchjob,
    whole_sequences,
)


def _collected() -> tuple[Rule, ...]:
    found = (value for family in FAMILIES for value in vars(family).values() if isinstance(value, Guidance))
    return tuple(sorted(found, key=lambda rule: rule.code))


#: every rule, sorted by code
RULES: tuple[Rule, ...] = _collected()
PLAN_RULES: tuple[PlanRule, ...] = tuple(rule for rule in RULES if isinstance(rule, PlanRule))
CASE_RULES: tuple[CaseRule, ...] = tuple(rule for rule in RULES if isinstance(rule, CaseRule))

_FORBIDDING = tuple(rule for rule in PLAN_RULES if rule.severity is Severity.ERROR)
_FORBIDDING_MORE = tuple(dict.fromkeys((*_FORBIDDING, *runtime_support.RUNTIME_RULES)))
#: the column that a rule found unknown the last time that it read one
_missed: dict[PlanRule, str] = {}
#: those that say something of a case by itself
_OF_CASES = tuple(rule for rule in RULES if isinstance(rule, (PlanRule, CaseRule)))
_BY_CODE = {rule.code: rule for rule in RULES}


def rule_named(code: str) -> Rule | None:
    """Return the rule with a code, in any case of letters; None where there is none."""
    return _BY_CODE.get(code.upper())


def findings_of(case: Case, columns: Columns) -> tuple[Finding, ...]:
    """Return what the rules say of a case, by code; ``columns`` hold the same case as plain numbers."""
    found: list[Finding] = []
    for rule in _OF_CASES:
        try:
            fires = not isinstance(rule, PlanRule) or rule.mask(columns)
            hit = rule.hit(case) if fires else None
        except UnknownFactError:
            continue
        if hit is not None:
            found.append(finding(rule, hit))
    return tuple(found)


def rejection_masks(columns: Columns, judged: Container[PlanRule] = ()) -> Iterator[tuple[PlanRule, Mask]]:
    """Yield the rules that forbid plans, each with the rows that it forbids.

    Where ``applied_alone`` is known, what ``auto_parallelize`` does not apply is forbidden too.

    A mask is one bool where the rule reads nothing that differs between the rows. Left out are rules that
    read a column which is unknown, and those that were judged before.
    """
    rules = _FORBIDDING_MORE if columns.has("applied_alone") else _FORBIDDING
    for rule in rules:
        if rule in judged:
            continue
        # a rule reads the same columns of all plans: it is known which one it missed, as most do that wait
        missed = _missed.get(rule)
        if missed is not None and not columns.has(missed):
            continue
        try:
            yield rule, rule.mask(columns)
        except UnknownFactError as error:
            _missed[rule] = error.fact
