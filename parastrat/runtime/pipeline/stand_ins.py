"""Where what stands in for tensors of other stages would get into what a stage computes.

Code around the parts runs on every stage, also on what stands in for outputs and weights of other stages:
that was proven to end in what nobody reads (``proof``). A flag or a number that changes later may read it
all the same, and take zeros for values. So what such code makes of it is followed, outside of the parts,
which get nothing of it; one that does is followed as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils.weak import WeakIdKeyDictionary

from parastrat.errors import WrapError
from parastrat.runtime.tensors.leaves import tensors_in, tree_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: functions that read no more than shapes and formats of what stands behind the first argument
_LIKE = frozenset({"to", "type", "type_as", "expand_as", "view_as", "reshape_as"})


class StandIns(TorchFunctionMode):
    """Follows what stands in for tensors of other stages, while it is active.

    Args:
        weights: what stands in for those of other stages.
    """

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._weights = list(weights)
        self._found = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if self.is_in(args[:1] if name in _LIKE else (args, kwargs)):
            self.add(result)
            if result is None or (name.endswith("_") and not name.endswith("__")):
                self._write(args[:1])
        return result

    def begin(self) -> None:
        """Begin a micro-batch."""
        self._found = WeakIdKeyDictionary(dict.fromkeys(self._weights))
        self.go_on()

    def go_on(self) -> None:
        """Follow what runs from here on."""
        enter: Callable[[], Any] = self.__enter__
        enter()

    def end(self) -> None:
        """Follow nothing more."""
        leave: Callable[..., None] = self.__exit__
        leave(None, None, None)

    def add(self, values: Any) -> None:
        """Follow the tensors among some values."""
        for leaf in tree_tensors(values):
            self._found[leaf] = None

    def _write(self, values: Any) -> None:
        """Follow what was written to; what is written to a view is in the other as well."""
        self.add(values)
        # to ask other types is to compute with them: those of sequence parallelism are gathered then
        plain = [leaf for leaf in tree_tensors(values) if type(leaf) is torch.Tensor]
        self.add([leaf._base for leaf in plain if leaf._base is not None])  # noqa: SLF001  (no public accessor)

    def is_in(self, values: Any) -> bool:
        """Return whether any of some values is followed."""
        return any(leaf in self._found for leaf in tree_tensors(values))

    def check(self, values: Any, what: str) -> None:
        """Refuse values, whatever holds them, that were computed from what stands in for others.

        Raises:
            WrapError: naming what they are.
        """
        if self.is_in(tensors_in(values)):
            raise WrapError(
                f"{what} is computed from a tensor that another stage holds: the forward takes another way "
                "than the one that was cut into stages",
                hint="set flags that the forward hangs on before auto_parallelize, or plan --pp 1",
            )

    def rest(self) -> bool:
        """Stand aside, unless a script's own mode stands before it; return whether it does."""
        current: Callable[[], Any] = _get_current_function_mode
        is_first = current() is self
        if is_first:
            self.end()
        return is_first
