"""What a block's own code finds inside: attention to all positions, and its own number of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from parastrat.runtime.context_parallel.counting import Calls, counted

if TYPE_CHECKING:
    from parastrat.runtime.context_parallel.attention import Attention
    from parastrat.runtime.context_parallel.counting import Call


class Inside(TorchFunctionMode):
    """One forward of a block on this rank's positions.

    Args:
        attention: of the model.
        counts: the calls of blocks that count positions.
        own: how many positions this rank has.
    """

    def __init__(self, attention: Attention, counts: tuple[Call, ...], own: int) -> None:
        super().__init__()
        self._attention, self._counts, self._own = attention, counts, own
        # a compiler cannot follow how calls are counted
        self._calls = Calls() if counts else None

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            return self._attention.of_call(self._own, *args, **kwargs)
        call = None if self._calls is None else self._calls.of(func)
        if call is not None and call in self._counts:
            return counted(call, args, kwargs, self._attention.positions, self._own)
        return func(*args, **kwargs)
