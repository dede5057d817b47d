"""What a forward leaves behind is taken away again: a trace's tensors have no values.

Code keeps tables that it computed once, such as rotary angles or a causal mask: in attributes, containers,
globals, ``functools.lru_cache``. What a trace left there would be used in training.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from parastrat.collection import instances, setting_aside

_MAPPINGS = (dict, OrderedDict, defaultdict)
_ROWS = (list, deque)
#: what ``functools.cache`` makes
_MEMO = functools._lru_cache_wrapper  # noqa: SLF001  (it has no other name)
#: never looked into
_OPAQUE = (nn.Module, torch.Tensor, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
#: most of what caches hold, and nothing else in it
_PLAIN = {str, int, float, bool, type(None), type}
#: packages whose globals and objects no model's code fills
_LIBRARIES = ("torch", "builtins", "parastrat")


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Let a module, and what its code keeps elsewhere, be as before afterwards.

    Restored are the attributes of its parts, of objects and in containers that they hold, and containers
    among the globals of their classes' files. Caches of functions that were filled are emptied where they
    hold a tensor without values.
    """
    with setting_aside():
        restored = [*_kept(module)]
        # kept, so that no new one is taken for one of these
        memos = {id(memo): (memo, memo.cache_info()) for memo in instances({_MEMO})}
        try:
            yield
        finally:
            for restore in restored:
                restore()
            for memo in instances({_MEMO}):
                _, before = memos.get(id(memo), (memo, None))
                if memo.cache_info() != before and _holds_fakes(memo):
                    memo.cache_clear()


def _kept(module: nn.Module) -> Iterator[Callable[[], None]]:
    """Yield what puts back each mapping and each row of values that the forward may change."""
    found: list[Any] = [vars(part) for part in module.modules()]
    kinds = {kind for part in module.modules() for kind in type(part).__mro__ if not _is_of_library(kind)}
    for name in {kind.__module__ for kind in kinds}:
        if name in sys.modules:
            names = vars(sys.modules[name])
            found += [value for value in names.values() if isinstance(value, _MAPPINGS + _ROWS)]
            yield functools.partial(_put_names, names, dict(names))
    seen: set[int] = set()
    while found:
        each = found.pop()
        if id(each) in seen or isinstance(each, _OPAQUE):
            continue
        seen.add(id(each))
        if type(each) in _MAPPINGS:
            yield functools.partial(_put_items, each, dict(each))
            found += each.values()
        elif type(each) in _ROWS:
            yield functools.partial(_put_row, each, list(each))
            found += each
        elif isinstance(each, tuple | set):
            found += each
        elif not _is_of_library(type(each)) and type(getattr(each, "__dict__", None)) is dict:
            found.append(vars(each))


def _is_of_library(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _LIBRARIES


def _put_items(items: dict[Any, Any], before: dict[Any, Any]) -> None:
    if list(items) != list(before):
        items.clear()
        items.update(before)
    for key, value in before.items():
        if items[key] is not value:
            items[key] = value


def _put_row(row: Any, before: list[Any]) -> None:
    if len(row) != len(before) or any(a is not b for a, b in zip(row, before, strict=True)):
        row.clear()
        row.extend(before)


def _put_names(names: dict[str, Any], before: dict[str, Any]) -> None:
    """Put globals back that were tensors, or became ones."""
    for name, value in list(names.items()):
        if isinstance(value, FakeTensor):
            if name in before:
                names[name] = before[name]
            else:
                del names[name]


def _holds_fakes(memo: Any) -> bool:
    """Return whether a cached function keeps a tensor without values, or was given one."""
    held = (each for each in gc.get_referents(memo) if type(each) not in _PLAIN and _is_value(each))
    return any(isinstance(leaf, FakeTensor) for each in held for leaf in tree_leaves(each))


def _is_value(each: Any) -> bool:
    return isinstance(each, torch.Tensor) or not callable(each)
