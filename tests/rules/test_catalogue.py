"""The catalogue lints itself."""

from __future__ import annotations

import ast
import csv
import re
import runpy
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from builders import case, codes, columns

from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.errors import UnknownFactError
from parastrat.finding import Hit, Severity
from parastrat.hardware import DeviceType, FabricKind
from parastrat.plan import Backend, Compile, Offload, PipelineSchedule, Recompute, Shard
from parastrat.rules import (
    CASE_RULES,
    FAMILIES,
    PLAN_RULES,
    RULES,
    PlanRule,
    Rule,
    findings_of,
    rejection_masks,
    rule_named,
)
from parastrat.rules.rule import plan_rule
from parastrat.scans import Scans
from parastrat.tables import facts_columns
from parastrat.units import GIB
from parastrat.workload import Optimizer, Precision

ROOT = Path(__file__).resolve().parents[2]

#: every code that was ever given out; a code is never reused, so lines only join this list
FROZEN = re.findall(
    r"\S+",
    """
PS101 PS102 PS103 PS104 PS105 PS106 PS107 PS108 PS109
PS200 PS201 PS202 PS203 PS206 PS207 PS208 PS210 PS211 PS212 PS213 PS214 PS215 PS216 PS217 PS219 PS220 PS223
PS224 PS226 PS227
PS290 PS291 PS292 PS293 PS294 PS295 PS296 PS297 PS298 PS299
PS301 PS302 PS303 PS304 PS305 PS306 PS307 PS308 PS309 PS310 PS311 PS312 PS313
PS320 PS321 PS322 PS323 PS324 PS325 PS326 PS330 PS331 PS332
PS380 PS381 PS382 PS383 PS384 PS385 PS386 PS387 PS388 PS389 PS390 PS391 PS392 PS393 PS394 PS395 PS396 PS397
PS401 PS402 PS403 PS404 PS410 PS411 PS412 PS413 PS414 PS415
PS501 PS502 PS503 PS504 PS505 PS506
PS511 PS512 PS513 PS514 PS515 PS516 PS517 PS518 PS519 PS520 PS521 PS522 PS523 PS524
PS525 PS526 PS527 PS528 PS529 PS530 PS531 PS532 PS533 PS534 PS535 PS536 PS537 PS538 PS539 PS540
PS541 PS542 PS543 PS544 PS545 PS546 PS547 PS548 PS549 PS550 PS551 PS552 PS553
PS554 PS555 PS556 PS557 PS558 PS559 PS560 PS561 PS562 PS563 PS564 PS565 PS566 PS567 PS568 PS569 PS570 PS571
PS600 PS601 PS602 PS603 PS604 PS605 PS606 PS607 PS608 PS609
PS610 PS611 PS612 PS613 PS614 PS615 PS616 PS617 PS618 PS619 PS620 PS621 PS622 PS623 PS624
PS625 PS626 PS627 PS628 PS629
PS630 PS631 PS632 PS633 PS634 PS635 PS636 PS637 PS638 PS639 PS640
PS641 PS642 PS643 PS644 PS645 PS646 PS647 PS648 PS649
PS650 PS651 PS652 PS653 PS654 PS655 PS656 PS657 PS658 PS659 PS660 PS661 PS662 PS663 PS664 PS665 PS666
PS667 PS668 PS669 PS670 PS671 PS672 PS673 PS674 PS675 PS676 PS677
PS678 PS679 PS680 PS681 PS682 PS683 PS684 PS685 PS686 PS687 PS688 PS689 PS690 PS691
PS692 PS693 PS694 PS695 PS696 PS697 PS698 PS699
PS701 PS702 PS703 PS704 PS705 PS706 PS707 PS708 PS709 PS710 PS711 PS712 PS713 PS714 PS715 PS716 PS717 PS718
PS719 PS720
PS801 PS802 PS803 PS804 PS805 PS811 PS812 PS813 PS814 PS815 PS816
""",
)

#: codes of rules that are no more
RETIRED = {"PS295", "PS812"}

#: collected pitfalls that no rule catches yet: most are about files, scripts and limits of the host
UNCOVERED = re.findall(
    r"\S+",
    """
PIT104 PIT112 PIT113 PIT114 PIT208
PIT311
PIT407 PIT420 PIT421
PIT504 PIT516
PIT520
PIT611 PIT612 PIT614 PIT616 PIT624
PIT702 PIT703 PIT704 PIT705 PIT707 PIT708 PIT709 PIT710 PIT711 PIT712
PIT801 PIT802 PIT803 PIT804 PIT805 PIT806 PIT808 PIT809
""",
)

by_code = pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
by_plan_rule = pytest.mark.parametrize("rule", PLAN_RULES, ids=[rule.code for rule in PLAN_RULES])


def test_codes_are_frozen_sorted_and_unique() -> None:
    assert [rule.code for rule in RULES] == [code for code in FROZEN if code not in RETIRED]


@by_code
def test_rule_teaches(rule: Rule) -> None:
    assert re.fullmatch(r"PS[1-8]\d\d", rule.code)
    assert rule.url.startswith("https://")
    assert 15 < len(rule.title) < 105
    assert not rule.title.endswith(".")
    assert len(rule.rationale) > 80
    assert "\n" not in rule.rationale.replace("\n\n", "")
    assert all(re.fullmatch(r"PIT\d{3}", code) for code in rule.covers)


def test_titles_differ() -> None:
    assert len({rule.title for rule in RULES}) == len(RULES)


def test_rules_are_named_in_any_case() -> None:
    rule = rule_named("ps201")
    assert rule is not None
    assert rule.title == "The attention heads must divide evenly over tp"
    assert rule_named("PS999") is None


def test_a_family_holds_no_rule_of_another() -> None:
    for family in FAMILIES:
        rules = [value for value in vars(family).values() if value in RULES]
        assert rules
        names = [name for name in vars(family) if name in {module.__name__ for module in FAMILIES}]
        assert not names


def test_conditions_use_operators_alone() -> None:
    """No `if`, `and`, `or`, `not`, min() in what runs over columns: they judge one plan only."""
    bad = (ast.If, ast.IfExp, ast.BoolOp, ast.Not, ast.Call)
    for family in FAMILIES:
        tree = ast.parse(Path(str(family.__file__)).read_text(encoding="utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and ast.unparse(node.args) == "p: Columns":
                inside = ast.walk(ast.Module(body=node.body, type_ignores=[]))
                wrong = [inner for inner in inside if isinstance(inner, bad) and not _of_columns(inner)]
                assert not wrong, f"{node.name}: {ast.unparse(wrong[0])}"


def _of_columns(node: ast.AST) -> bool:
    """Whether it calls what takes columns as well as numbers."""
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("code_of", "is_any_of", "are_shared")


ROWS = 4000


def grid(rows: int = ROWS) -> dict[str, Any]:
    """Random plans and facts, with the corners that rules are about in fair numbers."""
    draw = np.random.default_rng(0)

    def one_of(*values: int) -> Any:
        return draw.choice(np.array(values), rows)

    def choices(kind: Any) -> Any:
        return draw.integers(0, len(list(kind)), rows)

    degrees = {
        axis: one_of(1, 1, 2, 3, 4, 8) for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
    }
    dp = degrees["dp_replicate"] * degrees["dp_shard"]
    world = degrees["pp"] * dp * degrees["cp"] * degrees["tp"]
    micro, steps = one_of(1, 2, 8), one_of(1, 3, 4, 9, 16)
    exact = draw.random(rows) < 0.5
    return degrees | {
        "dp": dp,
        "world_size": world,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": steps,
        "virtual_stages": one_of(1, 1, 2, 4),
        "shard": choices(Shard),
        "recompute": choices(Recompute),
        "offload": choices(Offload),
        "precision": choices(Precision),
        "compile": choices(Compile),
        "backend": choices(Backend),
        "pp_schedule": one_of(-1, *range(len(PipelineSchedule))),
        **{
            name: draw.random(rows) < 0.5
            for name in (
                "reshard_after_forward",
                "sequence_parallel",
                "loss_parallel",
                "async_tp",
                "bf16_native",
                "has_fp8",
                "divides_experts",
                "pads_vocabulary",
                "splits_backward",
                "dtensors",
                "without_tokens",
                "without_heads",
                "without_experts",
                "ties_ends",
                "ties_inside",
            )
        },
        "cp_method": one_of(0, 1),
        "global_batch_size": np.where(exact, micro * steps * dp, one_of(1, 7, 64, 512)),
        "sequence_length": one_of(1020, 1024, 65536),
        "positions": one_of(0, 197, 256, 1020, 1024),
        "loss_chunks": one_of(1, 1, 1, 8),
        "optimizer": choices(Optimizer),
        "layers": one_of(2, 6, 8, 30, 61),
        "hidden": one_of(1024),
        "heads": one_of(6, 16, 20),
        "kv_heads": one_of(2, 6, 8),
        "stacks": one_of(1, 1, 2),
        "divisible": one_of(6, 16, 20),
        "vocab": one_of(50257, 131072),
        "experts": one_of(1, 8, 12),
        "max_sequence_length": one_of(1024, 8192),
        "scan_heads": one_of(12, 64, 128),
        "scan_groups": one_of(1, 4, 8),
        "token_heads": one_of(2, 8),
        "whole_scans": one_of(0, 1) == 1,
        "whole_sequences": one_of(0, 1) == 1,
        "devices": np.where(exact, world, one_of(8, 16)),
        "devices_per_node": one_of(8),
        "num_nodes": one_of(1, 2),
        "scale_up_devices": one_of(2, 4, 8),
        "scale_up_kind": choices(FabricKind),
        "device_type": one_of(*([0] * 4), *range(len(DeviceType))),
        "memory_total": one_of(10, 70, 76, 90) * GIB,
        "memory_margin": one_of(5) * GIB,
        "memory_capacity": one_of(75, 78) * GIB,
        "host_needed": one_of(16, 900) * GIB,
        "host_capacity": one_of(512, 1024) * GIB,
    }


GRID = grid()
PLANS = [Columns({name: column[row].item() for name, column in GRID.items()}) for row in range(ROWS)]


@by_plan_rule
def test_mask_over_a_grid_is_the_mask_plan_by_plan(rule: PlanRule) -> None:
    mask = np.broadcast_to(rule.mask(Columns(GRID)), ROWS)
    assert mask.tolist() == [bool(rule.mask(plan)) for plan in PLANS]
    assert 0 < mask.sum() < ROWS


@by_plan_rule
def test_plan_rule_has_its_message(rule: PlanRule) -> None:
    with pytest.raises(TypeError, match="has a message already"):
        rule.message(lambda _: Hit(message="", fix=""))


def test_grid_has_every_column() -> None:
    made = case()
    facts = Facts(model=made.model, hardware=made.hardware, workload=made.workload, stack=made.stack)
    assert set(facts_columns(facts)) <= set(GRID)
    scans = Scans(heads=64, groups=8, divided=True)
    every = columns(experts=8, scans=scans, divisible=16, divides_tokens=True)
    assert set(every.known()) == set(GRID)


def test_only_errors_reject() -> None:
    rejecting = [rule for rule, _ in rejection_masks(Columns(GRID))]
    assert rejecting == [rule for rule in PLAN_RULES if rule.severity is Severity.ERROR]


def test_rules_whose_columns_are_unknown_reject_nothing() -> None:
    known = {name: column for name, column in GRID.items() if not name.startswith("memory")}
    assert "PS101" not in {rule.code for rule, _ in rejection_masks(Columns(known))}
    assert "PS200" in {rule.code for rule, _ in rejection_masks(Columns(known))}


def test_masks_of_a_hundred_thousand_plans_are_quick() -> None:
    many = Columns(grid(100_000))
    start = perf_counter()
    assert len(list(rejection_masks(many))) > 20
    assert perf_counter() - start < 2


def test_the_default_case_is_clean() -> None:
    assert codes(optimizer=Optimizer.SGD) == set()
    # a tenth of its step is the optimizer's
    assert codes() == {"PS396"}


def test_unknown_facts_silence_a_rule() -> None:
    @plan_rule("PS999", Severity.ERROR, source="https://example.org")
    def reads_what_nobody_stated(p: Columns) -> Any:
        """Title."""
        return p.nothing > 1

    with pytest.raises(UnknownFactError):
        reads_what_nobody_stated.mask(columns())


def test_findings_come_sorted_with_all_facts_of_their_rule() -> None:
    made = case(tp=3, kv_heads=16, scale_up_devices=2)
    found = findings_of(made, columns(tp=3, kv_heads=16, scale_up_devices=2))
    assert [finding.code for finding in found] == sorted(finding.code for finding in found)
    for finding in found:
        rule = rule_named(finding.code)
        assert rule is not None
        assert (finding.severity, finding.url) == (rule.severity, rule.url)


def test_pitfalls_are_covered_or_listed() -> None:
    with (ROOT / "tests" / "data" / "pitfalls.csv").open(newline="", encoding="utf-8") as file:
        collected = {row["code"] for row in csv.DictReader(file)}
    covered = {code for rule in RULES for code in rule.covers}
    assert covered <= collected
    assert sorted(collected - covered) == UNCOVERED


def test_page_is_current() -> None:
    page = runpy.run_path(str(ROOT / "scripts" / "rules_page.py"))["page"]()
    assert (ROOT / "docs" / "rules.md").read_text(encoding="utf-8") == page, "run scripts/rules_page.py"
    assert re.findall(r"^### (PS\d+) ", page, flags=re.MULTILINE) == [rule.code for rule in RULES]


def test_case_rules_see_one_case_only() -> None:
    assert not [rule for rule in CASE_RULES if isinstance(rule, PlanRule)]
