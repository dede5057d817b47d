# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Break every rule's condition, negated and one operator at a time, and see that a test fails.

``python scripts/break_rules.py`` prints the breaks that no test noticed and how many there were. Run it in
the repository; it changes no file.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parastrat.finding import Hit
from parastrat.rules import CASE_RULES, PLAN_RULES, RULES, CaseRule, FileRule, PlanRule

ROOT = Path(__file__).resolve().parents[1]
#: of rules about files, whose samples stand beside each other
OF_FILES = (
    "check/test_files.py",
    "check/test_launches.py",
    "check/test_launch_words.py",
    "check/test_trainjobs.py",
    "check/test_pytorchjobs.py",
    "check/test_torchtitan_python.py",
)

#: where each kind of rule has its condition
FIELDS: dict[type, str] = {PlanRule: "condition", CaseRule: "judge", FileRule: "read"}

#: what each operator is broken into
SWAPPED: dict[type, type] = {
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Breaker(ast.NodeTransformer):
    """Swaps the operator with a given number, outside of what only words a message."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.broken = ""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Leave the wording alone."""
        return node if ast.unparse(node.func) == "Hit" else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Swap a comparison."""
        self.generic_visit(node)
        node.ops = [self._swapped(op, node) for op in node.ops]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Swap ``&`` and ``|``."""
        self.generic_visit(node)
        node.op = self._swapped(node.op, node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Swap ``and`` and ``or``."""
        self.generic_visit(node)
        node.op = self._swapped(node.op, node)
        return node

    def _swapped(self, operator: Any, node: ast.AST) -> Any:
        if type(operator) not in SWAPPED:
            return operator
        self.left -= 1
        if self.left != -1:
            return operator
        before = ast.unparse(node)
        self.broken = f"{before} [{type(operator).__name__} -> {SWAPPED[type(operator)].__name__}]"
        return SWAPPED[type(operator)]()


def breaks(function: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield a function with each of its operators swapped in turn."""
    for number in range(100):
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        for definition in tree.body:
            if isinstance(definition, ast.FunctionDef):
                # decorators would make a second rule, and annotations have operators of their own
                definition.decorator_list, definition.returns = [], None
        breaker = Breaker(number)
        breaker.visit(tree)
        if not breaker.broken:
            return
        scope = dict(function.__globals__)
        exec(compile(ast.fix_missing_locations(tree), "<broken>", "exec"), scope)  # noqa: S102 - our own source
        yield breaker.broken, scope[function.__name__]


def negated(rule: PlanRule | CaseRule | FileRule) -> Callable[..., Any]:
    """Return a rule's condition turned round."""
    if isinstance(rule, PlanRule):
        condition = rule.condition
        return lambda columns: condition(columns) == 0
    hit = Hit(message="negated", fix="")
    if isinstance(rule, FileRule):
        read = rule.read
        return lambda file: iter([] if list(read(file)) else [hit])
    judge = rule.judge
    return lambda case: None if judge(case) else hit


def noticed(rule: PlanRule | CaseRule | FileRule, broken: Callable[..., Any]) -> bool:
    """Return whether a test of the rule's family fails while its condition is broken."""
    field = FIELDS[type(rule)]
    whole = getattr(rule, field)
    family = f"rules/test_{whole.__module__.rpartition('.')[2]}.py"
    files = OF_FILES if isinstance(rule, FileRule) else (family,)
    object.__setattr__(rule, field, broken)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            code = pytest.main(
                ["-x", "-q", "-p", "no:cacheprovider", *(str(ROOT / "tests" / file) for file in files)]
            )
    finally:
        object.__setattr__(rule, field, whole)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        sys.exit(f"{rule.code}: there are no tests in {', '.join(files)}")
    return code == pytest.ExitCode.TESTS_FAILED


def main() -> int:
    """Break every condition and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("codes", nargs="*", help="only these rules")
    wanted = parser.parse_args().codes
    known = [rule for rule in RULES if isinstance(rule, FileRule)]
    rules = [rule for rule in (*PLAN_RULES, *CASE_RULES, *known) if not wanted or rule.code in wanted]
    total, survived = 0, 0
    for rule in rules:
        for what, broken in [("the whole", negated(rule)), *breaks(getattr(rule, FIELDS[type(rule)]))]:
            total += 1
            if not noticed(rule, broken):
                survived += 1
                print(f"{rule.code}: no test noticed {what}", flush=True)
    print(f"{total - survived} of {total} breaks of {len(rules)} rules' conditions made a test fail")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
