"""A rank that fails says so, and those that wait for it learn why, instead of waiting for ever.

Nothing is asked while all goes well. A rank that fails puts down what with, and waits a moment for the
others: where all failed, nobody waits for anybody, and their groups stay good. Otherwise it closes its
connections, so that those that wait for it stop; they look up what was put down, and close theirs.
"""

from __future__ import annotations

import time
import weakref
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from parastrat.errors import MismatchError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_KEY = "parastrat/failed"
#: torch's stages: "Failed to run stage backward", "failed to run forward"
_OVER = "ailed to run "
#: what Gloo says where another rank is gone, or does not answer, or where this one closed its connections
_LOST = (
    "closed by peer",
    "reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "connect() timeout",
    "caused pair closure",
)
#: seconds in which ranks that all fail are taken to fail together
TOGETHER_S = 2.0
_POLL_S = 0.01
_AT_ONCE = timedelta(milliseconds=1)
#: of a message that nobody sends; it may take none that was meant for something else
_UNSENT = 0x7A57


class _Entered:
    """How often the ranks of the default group came to what they do together, and if they still can."""

    def __init__(self) -> None:
        self.group: weakref.ref[dist.ProcessGroup] | None = None
        self.times = 0
        #: what was said when they parted
        self.parted = ""

    def count(self) -> None:
        """Count once more; from the start where the group is another."""
        if self.group is None or self.group() is not dist.group.WORLD:
            self.group = None if dist.group.WORLD is None else weakref.ref(dist.group.WORLD)
            self.times, self.parted = 0, ""
        self.times += 1


_entered = _Entered()


class Told:
    """Tells the other ranks what this one fails with, inside of the context; all ranks come to it alike.

    Raises:
        MismatchError: where this rank only lost contact, or lost it before, naming the rank that failed,
            and with what.
    """

    def __enter__(self) -> None:
        if not dist.is_initialized():
            return
        _entered.count()
        if _entered.parted:
            raise MismatchError(
                f"the ranks parted in an earlier call: {_entered.parted}",
                hint="start the job again, from its last checkpoint",
            )

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception) or not _has_others():
            return
        lost = _is_loss_of_contact(error)
        if not lost:
            _tell(innermost(error))
        if lost or not _all_ended():
            said = _heard()
            _entered.parted = said or stopped_with(innermost(error))
            _close_connections()
            _all_ended(again=not lost)
            if lost and said:
                raise MismatchError(said, hint="see the output of that rank") from error


def innermost(error: BaseException) -> BaseException:
    """Return what an error of a pipeline's stage was raised as: torch puts its own over it."""
    while error.__cause__ is not None and _OVER in str(error):
        error = error.__cause__
    return error


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise what happens in a stage as it was raised: torch's stages put errors of their own over it."""
    try:
        yield
    except RuntimeError as error:
        cause = innermost(error)
        if cause is error:
            raise
        raise cause from cause.__cause__


def stopped_with(error: BaseException) -> str:
    """Return what this rank tells the others of an error, in a line."""
    said = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"rank {dist.get_rank()} stopped with {type(error).__name__}: {said}"


def _is_loss_of_contact(error: BaseException) -> bool:
    return isinstance(error, dist.DistError) or any(text in str(innermost(error)) for text in _LOST)


def _key(what: str) -> str:
    return f"{_KEY}/{_entered.times}/{what}"


def _tell(error: BaseException) -> None:
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (nothing public returns it)
    try:
        # the first word counts: others may fail of what this one did
        store.compare_set(_key("said"), "", stopped_with(error))
    except dist.DistError:
        return  # it was another rank's, which is gone


def _heard() -> str:
    """Return what another rank said before it stopped, if it can still be asked for."""
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (nothing public returns it)
    try:
        return store.get(_key("said")).decode() if store.check([_key("said")]) else ""
    except dist.DistError:
        return ""


def _all_ended(*, again: bool = False) -> bool:
    """Say that this rank failed, unless it did; return whether all of them did so, soon enough."""
    store = dist.distributed_c10d._get_default_store()  # noqa: SLF001  (nothing public returns it)
    until = time.monotonic() + TOGETHER_S
    try:
        ended = store.add(_key("ended"), 0 if again else 1)
        while ended < dist.get_world_size() and time.monotonic() < until:
            time.sleep(_POLL_S)
            ended = store.add(_key("ended"), 0)
    except dist.DistError:
        return False
    return ended >= dist.get_world_size()


def _close_connections() -> None:
    """Let whoever waits for this rank over Gloo stop waiting.

    Nothing public closes a group while something holds it. A message that does not come in time makes Gloo
    give up the whole group, here and at its peers. NCCL's groups stay: their own watchdog ends them.
    """
    for group in list(dist.distributed_c10d._world.pg_map):  # noqa: SLF001  (nothing public lists groups)
        if dist.get_rank(group) < 0 or dist.get_world_size(group) == 1 or not _speaks_gloo(group):
            continue
        other = (dist.get_rank(group) + 1) % dist.get_world_size(group)
        try:
            awaited = dist.irecv(torch.empty(1), group=group, group_src=other, tag=_UNSENT)
            if awaited is not None:
                awaited.wait(_AT_ONCE)
        except RuntimeError:
            continue  # as it should


def _has_others() -> bool:
    """Return whether there are other ranks; those of dry runs are not there."""
    return dist.is_initialized() and dist.get_world_size() > 1 and dist.get_backend() != "fake"


def _speaks_gloo(group: dist.ProcessGroup) -> bool:
    return dist.Backend.GLOO in dist.get_backend_config(group)
