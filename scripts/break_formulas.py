# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Break every coefficient and every arithmetic operator of the formulas once, and see that a test fails.

``python scripts/break_formulas.py`` prints the breaks that no test noticed and how many there were; names
of modules, such as ``cost/compute``, choose among them. A break is a number made larger, an operator
swapped for its inverse, or a maximum for a minimum. Everything runs on a copy, in a process of its own each
time. Not for every day: it takes about half an hour.
"""

from __future__ import annotations

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]

#: each module with formulas, and the tests that have to notice, fast ones first
TESTS: dict[str, tuple[str, ...]] = {
    "cost/attention": ("cost/test_attention.py",),
    "cost/blocks": ("cost/test_step.py", "search/test_bounds.py"),
    "cost/communication": ("cost/test_communication.py",),
    "cost/compute": ("cost/test_compute.py", "search/test_bounds.py"),
    "cost/convolutions": ("cost/test_convolutions.py",),
    "cost/expert_sums": ("cost/test_data_parallel.py",),
    "cost/data_parallel": ("cost/test_data_parallel.py", "cost/test_offload.py", "search/test_bounds.py"),
    "cost/offload": ("cost/test_offload.py",),
    "cost/optimizer": ("cost/test_step.py", "cost/test_offload.py"),
    "cost/products": ("cost/test_compute.py", "cost/test_convolutions.py"),
    "cost/sends": ("cost/test_step.py",),
    "cost/step": ("cost/test_step.py", "cost/test_offload.py", "search/test_bounds.py"),
    "assess": ("test_assess.py",),
    "ranks/stages": ("ranks/test_stages.py",),
    "memory/peaks": ("memory/test_parts.py", "memory/test_peaks.py", "search/test_bounds.py"),
    "ranks/division": ("ranks/test_division.py", "ranks/test_states.py"),
    "ranks/load": (
        "ranks/test_load.py",
        "memory/test_parts.py",
        "cost/test_step.py",
        "search/test_bounds.py",
    ),
    "ranks/chains": ("ranks/test_moments.py", "ranks/test_load.py", "memory/test_parts.py"),
    "ranks/pipelines": ("ranks/test_moments.py", "ranks/test_load.py", "memory/test_parts.py"),
    "ranks/moments": ("ranks/test_moments.py", "memory/test_parts.py", "search/test_bounds.py"),
    "ranks/states": ("ranks/test_states.py", "memory/test_parts.py", "memory/test_peaks.py"),
    "memory/activations": ("memory/test_parts.py",),
    "memory/backward": ("memory/test_parts.py", "memory/test_peaks.py", "memory/test_several.py"),
    "memory/flying": (
        "memory/test_flying.py",
        "memory/test_parts.py",
        "memory/test_peaks.py",
        "memory/test_several.py",
    ),
    "memory/gathered": ("memory/test_parts.py", "memory/test_peaks.py"),
    "memory/held": ("memory/test_parts.py", "memory/test_peaks.py", "memory/test_several.py"),
    "memory/kinds": ("memory/test_parts.py", "memory/test_peaks.py", "memory/test_several.py"),
    "memory/pools": ("memory/test_pools.py", "memory/test_parts.py", "memory/test_several.py"),
    "memory/unmade": ("memory/test_parts.py", "memory/test_peaks.py", "memory/test_several.py"),
    "cost/operators": ("cost/test_compute.py", "search/test_bounds.py"),
    "sources/architecture": (
        "sources/test_architecture.py",
        "sources/test_ends.py",
        "sources/test_transformer.py",
    ),
    "sources/ends": ("sources/test_ends.py",),
    "sources/diffusion": ("sources/test_diffusion.py",),
    "sources/convnext": ("sources/test_convnext.py",),
    "sources/layers": ("sources/test_layers.py", "sources/test_ends.py"),
    "sources/feed_forward": ("sources/test_feed_forward.py",),
    "sources/state_space": ("sources/test_state_space.py",),
    "sources/hybrid": ("sources/test_state_space.py", "sources/test_hybrid.py"),
    "sources/transformer": ("sources/test_transformer.py",),
    "sources/convolutional": ("sources/test_convolutional.py",),
}

#: imported once, before the processes fork; nothing of parastrat may be among them
PRELOADED = ("numpy", "tomllib", "pydantic", "torch", "transformers")

#: breaks that change no result, by module and change, with the reason
_REST = "numpy takes any negative number for the size that is left"
_BISECTION = "the tolerance of a bisection, and how far it starts from the answer"
_ONE_RANK = "one rank has all blocks, in however many chunks"
_NO_PLANS = "read where there are no plans, whose arrays are empty along another axis"
EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "cost/products",
        "values.reshape(-1, *[1] * np.ndim(c.tp)) -> values.reshape(-2, *[1] * np.ndim(c.tp))",
    ): _REST,
    ("cost/expert_sums", "size > 0 -> size > 1"): "no gradient has one byte",
    ("sources/diffusion", "vocab=1 -> vocab=2"): "a transformer without a vocabulary has no table",
    ("sources/convnext", "_DOWN ** 2 -> _DOWN * 2"): "of two the square is the double",
    ("ranks/load", "pipeline_ranks(model, 1, 1) -> pipeline_ranks(model, 1, 2)"): _ONE_RANK,
    ("ranks/pipelines", "default=1 -> default=2"): _NO_PLANS,
    ("ranks/pipelines", "repeat=1 -> repeat=2"): "asks only which blocks are equal",
    ("ranks/pipelines", "initial=0 -> initial=1"): _NO_PLANS,
    (
        "ranks/pipelines",
        ("int(np.max(c.virtual_stages, initial=0)) + 1 -> int(np.max(c.virtual_stages, initial=0)) + 2"),
    ): "any number above the virtual stages tells pipelines apart",
    (
        "ranks/pipelines",
        "int(found.max(initial=0)) + 1 -> int(found.max(initial=0)) + 2",
    ): "a table may be longer than what is read of it",
    ("ranks/moments", "repeats.reshape(-1, len(kinds)) -> repeats.reshape(-2, len(kinds))"): _REST,
    (
        "ranks/moments",
        "range(2) -> range(3)",
    ): "a place that is neither last nor before it stays out of reach",
    (
        "ranks/moments",
        (
            "np.where(present & is_unit, np.arange(len(kinds)), -1)"
            " -> np.where(present & is_unit, np.arange(len(kinds)), -2)"
        ),
    ): "any negative number says that there is none",
    ("ranks/stages", "1 + 1e-09 -> 1 + 1.5000000000000002e-09"): "how far sums may round apart",
    ("ranks/stages", "max(flops) -> min(flops)"): _BISECTION,
    ("ranks/stages", "max(largest, loads[-1] / stages) -> min(largest, loads[-1] / stages)"): _BISECTION,
    ("ranks/stages", "loads[-1] -> loads[-2]"): _BISECTION,
    ("ranks/stages", "1e-06 * high -> 1.5e-06 * high"): _BISECTION,
    ("ranks/stages", "[0] -> [1]"): "every place is overwritten before it is read",
    ("sources/convolutional", "stride > 1 -> stride > 2"): "a block that strides widens too",
    (
        "sources/convolutional",
        (
            "_convolutions('stem', 1, [first], (b, kernels), last=pooled + pixels, first=pixels)"
            " -> _convolutions('stem', 2, [first], (b, kernels), last=pooled + pixels, first=pixels)"
        ),
    ): "only other fields are read",
}

#: a break that keeps the tests busy for so long has been noticed, seconds
LIMIT_S = 60

SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
}
EXTREMES = {"max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum"}

#: words of an error, and what no formula reads
_SKIPPED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Break:
    """One module with one thing changed."""

    module: str
    line: int
    #: the smallest expression that shows it, before and after
    change: str
    code: CodeType


def breaks(module: str) -> Iterator[Break]:
    """Yield a module with each of its numbers and operators broken in turn."""
    path = ROOT / "parastrat" / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    for number in range(len(list(_sites(ast.parse(source))))):
        tree = ast.parse(source)
        node, shown = list(_sites(tree))[number]
        before = ast.unparse(shown)
        _break(node)
        code = compile(tree, str(path), "exec")
        yield Break(module, node.lineno, f"{before} -> {ast.unparse(shown)}", code)


def _sites(tree: ast.AST, shown: ast.AST | None = None) -> Iterator[tuple[Any, ast.AST]]:
    """Yield what can be broken below a node, each with the expression that shows it."""
    for field, value in ast.iter_fields(tree):
        if field in ("decorator_list", "annotation", "returns"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, _SKIPPED):
                continue
            # a bare number or "-1" says little
            context = shown if isinstance(node, ast.Constant | ast.UnaryOp) else node
            context = node if context is None else context
            if _breakable(node):
                yield node, context
            yield from _sites(node, context)


def _breakable(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.BinOp):
        return type(node.op) in SWAPPED
    return isinstance(node, ast.Call) and _called(node) in EXTREMES


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _break(node: Any) -> None:
    if isinstance(node, ast.Constant):
        value: Any = node.value
        node.value = value + 1 if isinstance(value, int) else 1.5 * value or 1.0
    elif isinstance(node, ast.BinOp):
        node.op = SWAPPED[type(node.op)]()
    elif isinstance(node.func, ast.Attribute):
        node.func.attr = EXTREMES[node.func.attr]
    else:
        node.func.id = EXTREMES[node.func.id]


class Broken(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module and runs other code for it."""

    def __init__(self, broken: Break) -> None:
        self.name = "parastrat." + broken.module.replace("/", ".")
        self.code = broken.code

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Answer for the one module."""
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        """Run the broken code."""
        exec(self.code, module.__dict__)  # noqa: S102 - our own source


def run_tests(paths: Sequence[str], broken: Break | None) -> None:
    """Run tests in the current folder and leave with pytest's code; for a process of its own."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123 - a device
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a string is wanted
    if broken is not None:
        sys.meta_path.insert(0, Broken(broken))
    # hypothesis is imported before pytest could rewrite it
    quiet = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
    options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile", "once", *quiet]
    sys.exit(int(pytest.main([*options, *(f"tests/{path}" for path in paths)])))


def noticed(paths: Sequence[str], broken: Break | None) -> bool:
    """Return whether a test fails, or does not come to an end."""
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(paths, broken))
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode != 0


def _prepare(folder: Path) -> None:
    for part in ("parastrat", "tests", "profiles"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    os.chdir(folder)
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        "once", derandomize=True, database=None, deadline=None, phases=phases
    )
    for name in PRELOADED:
        importlib.import_module(name)


def broken_ones(modules: Sequence[str], report: Callable[[str], None]) -> tuple[int, int, int]:
    """Return how many breaks there were, were noticed, and are equivalent."""
    total = found = equivalent = 0
    for module in modules:
        if noticed(TESTS[module], None):
            raise SystemExit(f"the tests of {module} fail as it is: {TESTS[module]}")
        for broken in breaks(module):
            if (module, broken.change) in EQUIVALENT:
                equivalent += 1
                continue
            total += 1
            if noticed(TESTS[module], broken):
                found += 1
            else:
                report(f"{module}.py:{broken.line}: no test noticed {broken.change}")
    return total, found, equivalent


def main() -> int:
    """Break the chosen modules and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", help=", ".join(TESTS))
    modules = parser.parse_args().modules or list(TESTS)
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder))
        total, found, equivalent = broken_ones(modules, lambda line: print(line, flush=True))
    print(f"{found} of {total} breaks made a test fail; {equivalent} more are equivalent")
    return 0 if found == total else 1


if __name__ == "__main__":
    sys.exit(main())
