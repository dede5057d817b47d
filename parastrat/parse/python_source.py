"""Python files as syntax: what their names were imported as, and where things stand; nothing is run."""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from parastrat.parse.config_text import ConfigSyntaxError, check_size

_MEND = "mend the line; Python itself would stop there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A Python file."""

    tree: ast.Module
    lines: tuple[str, ...]
    #: dotted names of what was imported, by the names here; what is bound to several things is left out
    imports: Mapping[str, str]
    #: functions of the module itself
    functions: Mapping[str, ast.FunctionDef]
    #: names that stand for one thing in the whole file
    unique: frozenset[str]
    #: and those of them that the module itself gives a value
    constants: Mapping[str, ast.expr]

    def place(self, node: ast.expr | ast.keyword | ast.stmt) -> tuple[int, int]:
        """Return where something begins, line and column from 1; of an attribute, where its name does."""
        line, offset = node.lineno, node.col_offset
        if isinstance(node, ast.Attribute) and node.end_lineno is not None:
            line, offset = node.end_lineno, (node.end_col_offset or 0) - len(node.attr.encode())
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        # offsets count bytes
        return line, len(text.encode()[:offset].decode(errors="replace")) + 1

    def dotted(self, node: ast.AST | None) -> str:
        """Return the full name of what an expression names; empty where it was not imported."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not parts:
            # a quoted annotation
            first, *parts = [*node.value.split(".")]
            parts.reverse()
        elif isinstance(node, ast.Name):
            first = node.id
        else:
            return ""
        full = self.imports.get(first)
        return "" if full is None else ".".join([full, *reversed(parts)])


def read_source(text: str) -> Source:
    """Read Python.

    Raises:
        ConfigSyntaxError: it is none, or too large or too deep to be a configuration.
    """
    check_size(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        position = None if error.lineno is None else (max(error.lineno, 1), max(error.offset or 1, 1))
        raise ConfigSyntaxError(f"not Python: {error.msg}", hint=_MEND, position=position) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigSyntaxError(
            "not readable as Python: nested too deep, or of letters that it does not take", hint=_MEND
        ) from error
    bound = Counter(_bound(tree))
    imports = dict(_imports(tree))
    # of the same thing in several functions
    several = Counter(name for name, _ in set(_imports(tree)))
    unique = frozenset(name for name, times in bound.items() if times == 1 and name not in imports)
    return Source(
        tree=tree,
        lines=tuple(text.splitlines()),
        imports={name: full for name, full in imports.items() if several[name] == 1 and not bound[name]},
        functions={
            node.name: node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and bound[node.name] == 1 and node.name not in imports
        },
        unique=unique,
        constants={
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name) and target.id in unique
        },
    )


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                yield alias.asname or alias.name, f"{module.rstrip('.') or module}.{alias.name}"


def _bound(tree: ast.Module) -> Iterator[str]:
    """Yield names as often as something is bound to them, other than by an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
