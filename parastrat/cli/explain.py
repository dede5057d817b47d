"""``parastrat explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parastrat.cli.completion import rule_words
from parastrat.errors import UsageError

if TYPE_CHECKING:
    from parastrat.rules import Rule

_SCHEMA = "parastrat.explain/1"
#: how the name of a plan file ends
_PLAN = ".toml"

Code = Annotated[
    str | None,
    typer.Argument(
        metavar="[CODE]",
        help="Such as PS101, all are listed without it; a plan.toml, to see where its memory goes; or the "
        "log of a job that failed.",
        autocompletion=rule_words,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def explain(code: Code = None, *, as_json: AsJson = False) -> None:
    """Say what a rule demands, and why; what takes the room of a plan; or why a job failed, by its log."""
    from parastrat.cli.examples import example_of
    from parastrat.cli.output import paper, show, show_json
    from parastrat.records import plain
    from parastrat.report.rule_page import rule_list_text, rule_text
    from parastrat.rules import RULES

    if code is not None and code.endswith(_PLAN):
        _explain_plan(Path(code), as_json=as_json)
        return
    if code is not None and Path(code).is_file():
        _explain_log(Path(code), as_json=as_json)
        return
    if code is None:
        if as_json:
            show_json({"schema": _SCHEMA, "rules": [_rule_table(rule) for rule in RULES]})
        else:
            show(rule_list_text(RULES, paper()))
        return
    rule = _named(code)
    example = example_of(rule)
    if as_json:
        shown = None if example is None else {"case": example[0], **plain(example[1])}
        show_json({"schema": _SCHEMA, **_rule_table(rule), "example": shown})
    else:
        show(rule_text(rule, paper(), example=example))


def _explain_plan(path: Path, *, as_json: bool) -> None:
    """Show where a plan takes memory, and when."""
    from parastrat.assess import assess, columns_of
    from parastrat.cli.output import paper, show, show_json
    from parastrat.cli.plan_case import PlanSource, planned_case
    from parastrat.memory.rooms import rooms_of
    from parastrat.parse import read_plan
    from parastrat.report.estimation import rooms_text
    from parastrat.report.json import estimate_json
    from parastrat.rules import findings_of

    planned = planned_case(PlanSource(path=path, parsed=read_plan(path)), whole_model=True)
    case = assess(planned.facts, planned.plan)
    rooms, findings = rooms_of(case), findings_of(case, columns_of(case))
    if as_json:
        show_json(estimate_json(case, findings, rooms))
    else:
        show(rooms_text(case, findings, rooms, paper()))


def _explain_log(path: Path, *, as_json: bool) -> None:
    """Show what is known of the failures that a job's log tells of; end with 1 where nothing is."""
    from parastrat.cli.output import paper, show, show_json
    from parastrat.failures import failures_in
    from parastrat.report.failures import failures_text

    with path.open(errors="replace") as log:
        told = failures_in(log)
    if as_json:
        table = [
            {
                "line": each.line,
                "text": each.text,
                "blames": each.failure.blames.value,
                "means": each.failure.means,
                "change": each.failure.change,
                "source": each.failure.source,
            }
            for each in told
        ]
        show_json({"schema": _SCHEMA, "failures": table})
    else:
        show(failures_text(str(path), told, paper()))
    if not told:
        raise typer.Exit(1)


def _named(code: str) -> Rule:
    """Return a rule by its code.

    Raises:
        UsageError: there is none; the hint has the nearest.
    """
    from parastrat.rules import RULES, rule_named
    from parastrat.rules.codes import nearest_codes

    rule = rule_named(code)
    if rule is None:
        if "." in code or "/" in code:
            raise UsageError(f"there is no file {code}", hint="name a plan.toml, or the log of a job")
        near = nearest_codes(code, [rule.code for rule in RULES])
        hint = f"did you mean {', '.join(near)}?" if near else "`parastrat explain` lists all codes"
        raise UsageError(f"there is no rule {code!r}", hint=hint)
    return rule


def _rule_table(rule: Rule) -> dict[str, Any]:
    return {
        "code": rule.code,
        "severity": rule.severity.value,
        "title": rule.title,
        "rationale": rule.rationale,
        "url": rule.url,
        "covers": list(rule.covers),
    }
