"""The rules of the house: what may import what, sizes, names, and that the first page tells the truth."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "parastrat"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")

#: what costs start-up time, or is not there on a machine that only plans
HEAVY = {"torch", "transformers", "pydantic", "jinja2", "pynvml"}
MAX_LINES = 300
#: files that may be longer, with the reason
LONGER: dict[str, str] = {
    "rules/backend_table.py": "one row for each line of the documented table; no logic",
    "rules/pipeline.py": "rules are short and alike; a family stays in one file",
}


def test_imports_go_only_downwards() -> None:
    command = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_files_import_each_other_in_a_circle() -> None:
    """Not for type checks either: what knows of each other is one subject, or wants to be told apart."""
    files = {_module_of(path): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
    # raises an error that names a circle
    order = [
        *TopologicalSorter(
            {name: set(_read_by(tree, files)) for name, tree in files.items()}
        ).static_order()
    ]
    assert set(order) == set(files)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_heavy_packages_are_imported_where_they_are_needed(path: Path) -> None:
    allowed = {"torch"} if path.is_relative_to(PACKAGE / "runtime") else set()
    assert set(_imported_on_loading(ast.parse(path.read_text(encoding="utf-8")))) & HEAVY <= allowed


def test_planning_needs_none_of_them() -> None:
    modules = "parastrat, parastrat.search, parastrat.profiles, parastrat.sources, parastrat.probe"
    code = f"import sys, {modules}; print(*sorted({HEAVY} & set(sys.modules)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_no_public_name_is_a_modules_name() -> None:
    everywhere = {path.stem for path in SOURCES if path.stem != "__init__"}
    everywhere |= {path.parent.name for path in SOURCES if path.stem == "__init__"}
    assert not set(importlib.import_module("parastrat").__all__) & everywhere
    for path in SOURCES:
        if path.name != "__init__.py" or path.parent == PACKAGE:
            continue
        package = importlib.import_module(".".join(path.parent.relative_to(ROOT).parts))
        inside = {entry.stem for entry in path.parent.glob("*.py")} | {
            entry.name for entry in path.parent.iterdir() if entry.is_dir()
        }
        assert not set(getattr(package, "__all__", ())) & inside, package.__name__


def test_every_public_name_is_there() -> None:
    package = importlib.import_module("parastrat")
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_short(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    if str(path.relative_to(PACKAGE)) in LONGER:
        assert lines > MAX_LINES, "this file is short again: take it off the list"
    else:
        assert lines <= MAX_LINES


def test_extras() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) == {"hf", "mpi", "dev"}


def test_dependencies_have_a_floor_and_no_ceiling() -> None:
    for requirement in PROJECT["project"]["dependencies"]:
        assert re.fullmatch(r"[A-Za-z0-9._-]+>=[0-9.]+", requirement), requirement


def test_installing_leaves_torch_alone() -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-index"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--report", "-", str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout[done.stdout.index("{") : done.stdout.rindex("}") + 1])
    assert [entry["metadata"]["name"] for entry in report["install"]] == ["parastrat"]


def test_the_readme_has_two_commands_that_exist() -> None:
    scripts = re.findall(r"^bash (\S+)$", README, flags=re.MULTILINE)
    assert scripts == ["scripts/demo.sh", "scripts/test.sh"]
    for script in scripts:
        assert os.access(ROOT / script, os.X_OK)


def test_files_that_the_readme_names_exist() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_files_of_the_package_that_comments_name_exist() -> None:
    folders = ("parastrat", "profiles", "tests", "benchmarks", "scripts", "docs")
    texts = [
        path for each in folders for end in ("py", "md", "toml") for path in (ROOT / each).rglob(f"*.{end}")
    ]
    named = [
        (str(path.relative_to(ROOT)), name)
        for path in texts
        for name in re.findall(r"(?<![\w/])parastrat/[\w/]+\.py", path.read_text(encoding="utf-8"))
    ]
    assert named
    assert [each for each in named if not (ROOT / each[1]).exists()] == []


def test_commands_that_the_readme_shows_are_commands() -> None:
    shown = set(re.findall(r"(?:^\$? ?|`)parastrat ([a-z][a-z-]+)", README, flags=re.MULTILINE))
    assert {"recommend", "run", "emit", "explain"} <= shown
    for command in shown:
        asked = [sys.executable, "-m", "parastrat", command, "--help"]
        assert subprocess.run(asked, cwd=ROOT, capture_output=True, check=False).returncode == 0, command


def test_the_report_in_the_readme_is_the_real_one() -> None:
    spec = importlib.util.spec_from_file_location("readme_report", ROOT / "scripts" / "readme_report.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.updated(README) == README, "run scripts/readme_report.py"


def test_ci_calls_what_the_readme_calls() -> None:
    assert "\nbash scripts/test.sh\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _read_by(tree: ast.Module, files: Collection[str]) -> Iterator[str]:
    """Yield the project's files of which a module imports anything, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found = name if name in files else node.module
                if found in files:
                    yield found


def _imported_on_loading(tree: ast.Module) -> Iterator[str]:
    """Yield the packages that a module imports when it is loaded: not in functions, not for type checks."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.If):
            guarded = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            waiting += node.orelse if guarded else [*node.body, *node.orelse]
        elif isinstance(node, ast.ClassDef | ast.With):
            waiting += node.body
        elif isinstance(node, ast.Try):
            waiting += [*node.body, *node.orelse, *node.finalbody]
            waiting += [statement for handler in node.handlers for statement in handler.body]
