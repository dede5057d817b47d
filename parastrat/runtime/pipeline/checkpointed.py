"""Blocks that a forward checkpoints by itself, on their way through stages."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def not_reentrant() -> Iterator[None]:
    """Let reentrant checkpoints be of the other kind, with the same numbers.

    They run what is inside without gradients: what a stage sends from there, or is given there, would be
    cut off from its graph, and the stages before would not be trained.
    """
    own = torch.utils.checkpoint.CheckpointFunction
    torch.utils.checkpoint.CheckpointFunction = _NotReentrant  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        torch.utils.checkpoint.CheckpointFunction = own  # type: ignore[misc]


class _NotReentrant:
    """Stands where ``checkpoint`` looks for its autograd function."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )
