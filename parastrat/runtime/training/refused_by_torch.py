"""A script that ends as torch refuses something of divided tensors is told what it means, and what to do.

One that copied its model before ``auto_parallelize``, as for an average of weights, has whole weights in
the copy, and parts in the model: torch asks to convert "all torch.Tensor to DTensor". Of an operator it
says that it "does not have a sharding strategy registered".
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from parastrat.failures import MIXTURE, OF_DIVIDED

if TYPE_CHECKING:
    from types import TracebackType

    from parastrat.failures import Failure
    from parastrat.runtime.wrapping import Wrapping

#: torch's last function, where plain tensors were let in, as activations that are DTensors need it
_WRITES_TO_PLAIN = "_dispatch_fast_path_python_tail"
#: what was there before
_hooks: list[Any] = []


def tell_of_refusals(wrapping: Wrapping) -> None:
    """Add a note to what a script with divided tensors ends with, if it is one of these."""
    if (wrapping.plan.shards_parameters or wrapping.plan.mesh.tp > 1) and not _hooks:
        _hooks.append(sys.excepthook)
        sys.excepthook = _with_note


def _with_note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    meant = _meant(error, trace)
    if meant is not None:
        error.add_note(f"{meant.means}: {meant.change}")
    _hooks[0](kind, error, trace)


def _meant(error: BaseException, trace: TracebackType | None) -> Failure | None:
    if isinstance(error, AssertionError):
        writes = any(frame.name == _WRITES_TO_PLAIN for frame in traceback.extract_tb(trace)[-1:])
        return MIXTURE if writes else None
    if not isinstance(error, RuntimeError):  # NotImplementedError among them
        return None
    return next((each for each in OF_DIVIDED if each.says.search(str(error))), None)
