"""What functions of a Python file return, followed statement by statement without running any.

What a branch or a loop touches, and what is handed to functions of other files, is open behind them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from parastrat.config_file import OPEN
from parastrat.parse.python_values import Record, constant, joined, open_up, signed

if TYPE_CHECKING:
    from parastrat.parse.python_source import Source

#: makes a record of a call by the full name of what is called, its arguments and keywords; None: not its
Maker: TypeAlias = Callable[[str, Sequence[Any], Record], Record | None]

#: expressions and statements that are followed in one file, and how deep
_STEPS, _DEPTH = 100_000, 60
#: functions that call each other
_CALLS = 12
#: they change nothing that they are given
_HARMLESS = frozenset({"len", "isinstance", "print", "str", "int", "float", "max", "min", "sum", "list"})
_COPIES = frozenset({"copy.copy", "copy.deepcopy"})
_SILENT = (ast.Pass, ast.Import, ast.ImportFrom, ast.Assert, ast.Global, ast.Nonlocal, ast.Delete)


@dataclass(slots=True, kw_only=True)
class _Frame:
    """One call of a function."""

    names: dict[str, Any] = field(default_factory=dict)
    #: whether what comes is sure to run, and once
    sure: bool = True
    ended: bool = False
    result: Any = None


class Reader:
    """Follows the functions of one file."""

    def __init__(self, source: Source, maker: Maker) -> None:
        self._source, self._maker = source, maker
        self._left = _STEPS
        self._calls = 0
        self._module = _Frame()
        self._run(source.tree.body, self._module)

    def result_of(self, name: str) -> Any:
        """Return what a function of the file returns that is called without arguments."""
        return self._called(name, [], {}, sure=True)

    # ------------------------------------------------------------------ statements

    def _run(self, body: Sequence[ast.stmt], frame: _Frame) -> None:
        for statement in body:
            if frame.ended or self._left <= 0:
                return
            self._left -= 1
            self._statement(statement, frame)

    def _statement(self, node: ast.stmt, frame: _Frame) -> None:
        match node:
            case ast.Assign():
                value = self._value(node.value, frame)
                for target in node.targets:
                    self._assign(target, value, frame)
            case ast.AnnAssign(value=ast.expr() as stated):
                self._assign(node.target, self._value(stated, frame), frame)
            case ast.AugAssign():
                old, new = self._value(node.target, frame), self._value(node.value, frame)
                self._assign(node.target, joined(type(node.op), old, new), frame)
            case ast.Return():
                value = None if node.value is None else self._value(node.value, frame)
                frame.result = value if frame.sure and frame.result is not OPEN else OPEN
                frame.ended = frame.sure
            case ast.Raise():
                frame.ended = frame.sure
            case ast.Expr():
                self._value(node.value, frame)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._escape(node, frame)
            case _:
                self._branches(node, frame)

    def _branches(self, node: ast.stmt, frame: _Frame) -> None:
        """Follow a statement whose parts may run, or not, or often: what they touch is open."""
        if isinstance(node, _SILENT):
            return
        sure, frame.sure = frame.sure, False
        for child in ast.walk(node):
            if child is not node and isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                open_up(frame.names.get(child.id))
                frame.names[child.id] = OPEN
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._value(child, frame)
        for body in _bodies(node):
            self._run(body, frame)
        frame.sure = sure

    def _assign(self, target: ast.expr, value: Any, frame: _Frame) -> None:
        if not frame.sure:
            open_up(value)
            value = OPEN
        match target:
            case ast.Name():
                frame.names[target.id] = value
            case ast.Attribute():
                owner = self._value(target.value, frame)
                if isinstance(owner, Record):
                    owner.set(target.attr, value, self._source.place(target))
            case ast.Tuple() | ast.List():
                open_up(value)
                for each in target.elts:
                    self._assign(each, OPEN, frame)
            case ast.Subscript() | ast.Starred():
                open_up(value)
                self._forget(target.value, frame)

    def _forget(self, node: ast.expr, frame: _Frame) -> None:
        """Forget what an expression stands for: it may be changed in place."""
        value = self._value(node, frame)
        open_up(value)
        if isinstance(value, Record):
            return
        if isinstance(node, ast.Name):
            names = frame.names if node.id in frame.names else self._module.names
            names[node.id] = OPEN
        elif isinstance(node, ast.Attribute):
            owner = self._value(node.value, frame)
            if isinstance(owner, Record):
                owner.set(node.attr, OPEN, self._source.place(node))

    def _escape(self, node: ast.AST, frame: _Frame) -> None:
        """Forget the records that a function, or code that is not followed, may change."""
        for child in ast.walk(node):
            if isinstance(child, ast.Name):
                open_up(frame.names.get(child.id))

    # ------------------------------------------------------------------ expressions

    def _value(self, node: ast.expr, frame: _Frame, depth: int = 0) -> Any:
        self._left -= 1
        if self._left <= 0 or depth > _DEPTH:
            return OPEN
        match node:
            case ast.Constant():
                value = constant(node)
            case ast.Name():
                value = self._named(node.id, frame)
            case ast.UnaryOp():
                value = signed(node, self._value(node.operand, frame, depth + 1))
            case ast.BinOp():
                left, right = (self._value(each, frame, depth + 1) for each in (node.left, node.right))
                value = joined(type(node.op), left, right)
            case ast.List() | ast.Tuple():
                values = [self._value(each, frame, depth + 1) for each in node.elts]
                value = OPEN if OPEN in values else values
            case ast.Attribute():
                value = self._attribute(node, frame, depth)
            case ast.Call():
                value = self._call(node, frame, depth)
            case _:
                value = OPEN
                if any(isinstance(each, ast.Call | ast.Lambda | ast.NamedExpr) for each in ast.walk(node)):
                    self._escape(node, frame)
        return value

    def _named(self, name: str, frame: _Frame) -> Any:
        if name in frame.names:
            return frame.names[name]
        if name not in self._source.unique:
            return OPEN
        value = self._module.names.get(name, OPEN)
        # as each function finds it at its start
        return value.copy_at(value.place, "") if isinstance(value, Record) else value

    def _attribute(self, node: ast.Attribute, frame: _Frame, depth: int) -> Any:
        owner = self._value(node.value, frame, depth + 1)
        if not isinstance(owner, Record):
            return OPEN
        value = owner.fields.get(node.attr, OPEN)
        if value is OPEN:
            is_unknown = owner.rest_open or node.attr in owner.fields
            default = None if is_unknown else self._maker(f"{owner.made_by}:{node.attr}", (), Record())
            if default is None and not is_unknown:
                return OPEN
            value = default or Record(rest_open=True)
            value.place = owner.place
            owner.fields[node.attr] = value
        return value

    def _call(self, node: ast.Call, frame: _Frame, depth: int) -> Any:
        arguments = [self._value(each, frame, depth + 1) for each in node.args]
        keywords = Record(place=self._source.place(node))
        for keyword in node.keywords:
            value = self._value(keyword.value, frame, depth + 1)
            if keyword.arg is None:
                keywords.rest_open = True
            else:
                keywords.set(keyword.arg, value, self._source.place(keyword))
        full = self._source.dotted(node.func)
        made = self._maker(full, arguments, keywords) if full else None
        if made is not None:
            return made
        if full in _COPIES or full == "dataclasses.replace":
            return self._copied(arguments, keywords)
        if isinstance(node.func, ast.Name) and node.func.id in self._source.functions:
            return self._own(node, arguments, keywords, frame)
        if not (isinstance(node.func, ast.Name) and node.func.id in _HARMLESS):
            for value in (*arguments, *keywords.fields.values()):
                open_up(value)
            if isinstance(node.func, ast.Attribute) and not full:
                self._forget(node.func.value, frame)
        return Record(rest_open=True, place=keywords.place)

    def _copied(self, arguments: list[Any], keywords: Record) -> Any:
        """Return the copy of a record, with other values of some fields."""
        if len(arguments) != 1 or not isinstance(arguments[0], Record):
            return OPEN
        (record,) = arguments
        copy = replace(
            record,
            fields={**record.fields, **keywords.fields},
            places={**record.places, **keywords.places},
            settled=False,
        )
        if keywords.rest_open:
            copy.open_up()
        return copy

    def _own(self, node: ast.Call, arguments: list[Any], keywords: Record, frame: _Frame) -> Any:
        """Return what a function of the file returns."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if any(isinstance(each, ast.Starred) for each in node.args) or keywords.rest_open:
            for value in (*arguments, *keywords.fields.values()):
                open_up(value)
            return Record(rest_open=True, place=keywords.place)
        given = [*arguments, *keywords.fields.values()]
        value = self._called(name, arguments, keywords.fields, sure=frame.sure)
        if isinstance(value, Record) and all(value is not each for each in given):
            return value.copy_at(keywords.place, name)
        return value

    def _called(self, name: str, arguments: list[Any], keywords: Mapping[str, Any], *, sure: bool) -> Any:
        function = self._source.functions[name]
        is_odd = function.decorator_list or any(
            isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function)
        )
        if is_odd or self._calls >= _CALLS or self._left <= 0:
            for value in (*arguments, *keywords.values()):
                open_up(value)
            return Record(rest_open=True)
        names = self._parameters(function.args)
        positional = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        names |= dict(zip(positional, arguments, strict=False)) | dict(keywords)
        frame = _Frame(names=names, sure=sure)
        self._calls += 1
        self._run(function.body, frame)
        self._calls -= 1
        return frame.result if self._left > 0 else OPEN

    def _parameters(self, given: ast.arguments) -> dict[str, Any]:
        """Return the values of parameters that nobody passes."""
        positional = [*given.posonlyargs, *given.args]
        names = {each.arg: OPEN for each in (*positional, *given.kwonlyargs)}
        names |= {each.arg: OPEN for each in (given.vararg, given.kwarg) if each is not None}
        behind = positional[len(positional) - len(given.defaults) :]
        defaults = [*zip(behind, given.defaults, strict=True)]
        defaults += [
            (each, node) for each, node in zip(given.kwonlyargs, given.kw_defaults, strict=True) if node
        ]
        return names | {each.arg: self._value(node, self._module) for each, node in defaults}


def _bodies(node: ast.stmt) -> list[list[ast.stmt]]:
    """Return the statements within a statement."""
    parts = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    names = ("body", "orelse", "finalbody")
    return [getattr(part, name) for part in parts for name in names if getattr(part, name, None)]
