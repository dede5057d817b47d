"""A rank that fails in a step says so, and those that wait for it learn why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from parastrat.errors import MismatchError

if TYPE_CHECKING:
    from types import TracebackType

_KEY = "parastrat/failed"
#: torch's stages: "Failed to run stage backward", "failed to run forward"
_OVER = "ailed to run "
#: what Gloo says where another rank is gone, or does not answer
_LOST = ("closed by peer", "reset by peer", "Broken pipe", "Timed out waiting", "connect() timeout")


class Told:
    """Tells the other ranks what this one fails with, inside of the context.

    Raises:
        MismatchError: where this rank only lost contact, naming the rank that failed, and with what.
    """

    def __enter__(self) -> None:
        return

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or not dist.is_initialized():
            return
        if not _is_loss_of_contact(error):
            _tell(innermost(error))
        elif said := _heard():
            raise MismatchError(said, hint="see the output of that rank") from error


def innermost(error: BaseException) -> BaseException:
    """Return what an error of a pipeline's stage was raised as: torch puts its own over it."""
    while error.__cause__ is not None and _OVER in str(error):
        error = error.__cause__
    return error


def stopped_with(error: BaseException) -> str:
    """Return what this rank tells the others of an error, in a line."""
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"rank {dist.get_rank()} stopped with {type(error).__name__}: {said}"


def _is_loss_of_contact(error: BaseException) -> bool:
    return isinstance(error, dist.DistError) or any(text in str(innermost(error)) for text in _LOST)


def _tell(error: BaseException) -> None:
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (nothing public returns it)
    try:
        # the first word counts: others may fail of what this one did
        store.compare_set(_KEY, "", stopped_with(error))
    except dist.DistError:
        return  # it was another rank's, which is gone


def _heard() -> str:
    """Return what another rank said before it stopped, if it can still be asked for."""
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (nothing public returns it)
    try:
        return store.get(_KEY).decode() if store.check([_KEY]) else ""
    except dist.DistError:
        return ""
