"""Which modules may take another way through their parts on each rank: read from the source of forwards.

Layers that are left out at random (stochastic depth, LayerDrop) and branches on values run on some ranks
and not on others. DDP must search for what a step used, and FSDP2 cannot gather such a part by itself: the
ranks that run it would wait for the others.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

_DRAW = r"\b(?:rand|random|uniform|bernoulli_?)\("
#: a name that a draw is given
_DRAWN = re.compile(rf"^\s*(\w+)\s*=.*{_DRAW}", re.MULTILINE)
_BRANCH = re.compile(r"^.*\b(?:if|while)\b.*$", re.MULTILINE)
#: a number that is read of a tensor, and not what a module's own layer of the name returns
_VALUE = re.compile(r"(?<!\bself)\.(?:item|sum|mean|norm)\(")
_NUMBERS = frozenset({"item", "tolist", "any", "all", "sum", "mean", "norm"})
_OWN = re.compile(r"\bself((?:\.\w+)+)(?!\w*\()")


def drawn_ways(module: nn.Module) -> list[str]:
    """Return the names of modules whose forward draws numbers and branches on them; "" is the whole."""
    return [name for name, part in module.named_modules() if _draws(part)]


def chooses_ways(module: nn.Module) -> bool:
    """Return whether some forward of a module branches on numbers that it draws, or on values."""
    return any(_draws(part) or _reads(part) or _forks(part) for part in module.modules())


def outside_of(module: nn.Module, units: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return the units that no module around them may leave out."""
    choosing = [*drawn_ways(module), *(name for name, part in module.named_modules() if _forks(part))]
    return {
        name: unit
        for name, unit in units.items()
        if not any(not way or name.startswith(f"{way}.") for way in choosing)
    }


def _draws(part: nn.Module) -> bool:
    source = _source(part)
    drawn = [_DRAW, *(rf"\b{name}\b" for name in _DRAWN.findall(source))]
    return any(
        re.search("|".join(drawn), line) and not _never(part, line) for line in _BRANCH.findall(source)
    )


def _reads(part: nn.Module) -> bool:
    return any(_VALUE.search(line) for line in _BRANCH.findall(_source(part)))


def _forks(part: nn.Module) -> bool:
    """Return whether values of tensors decide which parts a forward calls."""
    return _decides(_source(part))


@cache
def _decides(source: str) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return False
    nodes = list(ast.walk(tree))
    #: local names: loops over lists of modules, and what is chosen among some
    local = {target.id for node in nodes for target in _targets(node)}
    for node in nodes:
        if isinstance(node, ast.For | ast.While):
            leaving = [
                branch for branch in ast.walk(node) if isinstance(branch, ast.If) and _leaves(branch)
            ]
            if any(_of_values(branch.test) for branch in leaving) and _calls_parts(node.body, local):
                return True
        branches = isinstance(node, ast.If | ast.While) and _of_values(node.test)
        if branches and _calls_parts([*node.body, *node.orelse], local):  # type: ignore[attr-defined]
            return True
    chosen = {
        target.id
        for node in nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.IfExp)
        and _of_values(node.value.test)
        for target in _targets(node)
    }
    return any(isinstance(node, ast.Call) and _called_name(node) in chosen for node in nodes)


def _targets(node: ast.AST) -> list[ast.Name]:
    held = [node.target] if isinstance(node, ast.For) else []
    held += node.targets if isinstance(node, ast.Assign) else []
    return [name for target in held for name in ast.walk(target) if isinstance(name, ast.Name)]


def _leaves(branch: ast.If) -> bool:
    return any(isinstance(node, ast.Break | ast.Continue) for node in ast.walk(branch))


def _of_values(test: ast.expr) -> bool:
    """Return whether a condition reads a number of a tensor, as ``float(x)`` or ``mask.any()`` does."""
    calls = [node for node in ast.walk(test) if isinstance(node, ast.Call)]
    methods = any(isinstance(call.func, ast.Attribute) and call.func.attr in _NUMBERS for call in calls)
    casts = (call for call in calls if _called_name(call) in {"float", "int", "bool"})
    return methods or any(_root(argument) not in {"self", ""} for call in casts for argument in call.args)


def _calls_parts(body: list[ast.stmt], local: set[str]) -> bool:
    calls = [node for each in body for node in ast.walk(each) if isinstance(node, ast.Call)]
    # self.layer(x), self.layers[0](x), block(x); not self.helper.attribute of torch's functions
    return any(_root(call.func) == "self" or _called_name(call) in local for call in calls)


def _called_name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _root(node: ast.expr) -> str:
    """Return the name that an expression of attributes and items begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _source(part: nn.Module) -> str:
    # FSDP2 makes classes of its own, which inherit it; what torch.jit compiled has none to show
    forward = getattr(type(part), "forward", None)
    return "" if forward is None else _source_of(forward)


@cache
def _source_of(forward: Callable[..., Any]) -> str:
    """Return a forward's source, which is read once for all modules of a class; empty where it has none."""
    if forward.__module__.startswith("torch."):
        return ""
    try:
        return inspect.getsource(forward)
    except (OSError, TypeError):  # made at run time
        return ""


def _never(part: nn.Module, line: str) -> bool:
    """Return whether a line compares with a probability of the module that is zero."""
    for path in _OWN.findall(line):
        value: Any = part
        for name in path.strip(".").split("."):
            value = getattr(value, name, None)
        if type(value) in {int, float} and value == 0:
            return True
    return False
