"""A bound on how long a forward is traced: loops in Python over positions take minutes, or never end.

A function mode sees each call of torch's that the forward makes, and may raise there; inside of dispatch an
exception would end the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.overrides import TorchFunctionMode

from parastrat.errors import ModelError

#: of this thread's processor time; models without such loops take some ten at most
BUDGET_S = 180.0


class Budget(TorchFunctionMode):
    """Ends a forward that has run for too long.

    Args:
        name: of the module's class.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._calls = 0
        self._until = time.thread_time() + BUDGET_S

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self._calls += 1
        if time.thread_time() > self._until:
            raise ModelError(
                f"{self._name}.forward has called {self._calls:,} functions in {BUDGET_S:.0f} s without an "
                "end: it seems to loop in Python, over the positions of a sequence or for ever",
                hint="estimate a shorter --seq-len or a preset of the same size, or let one operator scan "
                "(torch.library.custom_op with register_fake)",
            )
        return func(*args, **(kwargs or {}))
