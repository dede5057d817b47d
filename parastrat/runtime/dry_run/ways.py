"""What all ranks of a pipeline find alike: where the module is cut, and the way that its forward takes."""

from __future__ import annotations

import pickle
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from parastrat.runtime.pipeline import build, pipelined
from parastrat.runtime.pipeline.following import route_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parastrat.runtime.pipeline.cut import Cut
    from parastrat.runtime.pipeline.route import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Of a plan's micro-batches, which are alike."""

    cut: Cut
    route: Route

    def packed(self) -> bytes:
        """Return them as they pass between processes."""
        return pickle.dumps(self)


def _unpacked(packed: bytes) -> Ways:
    with warnings.catch_warnings():
        # torch warns of its own class when it makes one again
        warnings.simplefilter("ignore", FutureWarning)
        ways: Ways = pickle.loads(packed)  # noqa: S301  (a process of this dry run wrote it)
    return ways


class _Found(Exception):  # noqa: N818  (no error: it ends a wrapping that has told what it was for)
    def __init__(self, ways: Ways) -> None:
        super().__init__()
        self.ways = ways


def found_while(wrap: Callable[[], Any], batch: Any) -> Ways:
    """Return what ``wrap`` finds when it cuts a module; it ends there.

    Raises:
        ParastratError: as ``wrap`` raises it.
    """
    cut_of = build.cut_of

    def cut(module: Any, inputs: Any, setting: Any, *more: Any) -> Any:
        found = cut_of(module, inputs, setting, *more)
        raise _Found(Ways(cut=found, route=route_of(module, batch, setting)))

    with patch.object(build, "cut_of", cut):
        try:
            wrap()
        except _Found as found:
            return found.ways
    raise AssertionError("a plan with stages is cut")


@contextmanager
def known(packed: bytes | None) -> Iterator[None]:
    """Let modules be cut as is known, and forwards take the way that is known; with None as ever."""
    with ExitStack() as stack:
        if packed is not None:
            ways = _unpacked(packed)
            stack.enter_context(patch.object(build, "cut_of", lambda *_: ways.cut))
            stack.enter_context(patch.object(pipelined, "route_of", lambda *_: ways.route))
        yield
