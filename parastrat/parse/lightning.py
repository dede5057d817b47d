"""What a script tells Lightning of the processes that train it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.parse.python_source import Source

#: packages that have what trains
_PACKAGES = frozenset({"lightning", "lightning_fabric", "pytorch_lightning"})
_CLASSES = frozenset({"Fabric", "Trainer"})
#: by which another environment than Slurm's can be chosen
_OTHERS = frozenset({"plugins", "cluster_environment"})


def lightning_counts(source: Source) -> dict[str, int] | None:
    """Return ``num_nodes``, and ``devices`` of a node if that is a number, of a script's only Trainer.

    Lightning's ``Fabric`` is one as well. None where there is none, there are several, or some of what it
    is told is not constant.
    """
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and _trains(source, node)]
    if len(calls) != 1:
        return None
    told = {keyword.arg: keyword.value for keyword in calls[0].keywords}
    if None in told or calls[0].args or not _OTHERS.isdisjoint(told):
        return None
    found = {"num_nodes": 1, **dict(_counts(source, told))}
    return None if _is_open(source, told.get("num_nodes")) else found


def _trains(source: Source, call: ast.Call) -> bool:
    package, _, name = source.dotted(call.func).partition(".")
    return package in _PACKAGES and name.rpartition(".")[2] in _CLASSES


def _counts(source: Source, told: dict[str | None, ast.expr]) -> Iterator[tuple[str, int]]:
    for name in ("devices", "num_nodes"):
        value = _constant(source, told.get(name))
        if isinstance(value, ast.List | ast.Tuple) and name == "devices":
            yield name, len(value.elts)
        elif isinstance(value, ast.Constant) and type(value.value) is int and value.value > 0:
            # -1 are all that there are
            yield name, value.value


def _is_open(source: Source, value: ast.expr | None) -> bool:
    """Whether a number is told that is not constant."""
    known = _constant(source, value)
    return known is not None and not (isinstance(known, ast.Constant) and type(known.value) is int)


def _constant(source: Source, value: ast.expr | None) -> ast.expr | None:
    return source.constants.get(value.id, value) if isinstance(value, ast.Name) else value
