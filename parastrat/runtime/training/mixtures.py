"""A script that ends as torch's operators refuse whole tensors beside divided ones is told what to copy.

One that copied its model before ``auto_parallelize``, as for an average of weights, has whole weights in
the copy, and parts in the model: torch asks to convert "all torch.Tensor to DTensor".
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from parastrat.failures import MIXTURE

if TYPE_CHECKING:
    from types import TracebackType

    from parastrat.runtime.wrapping import Wrapping

#: torch's last function, where plain tensors were let in, as activations that are DTensors need it
_WRITES_TO_PLAIN = "_dispatch_fast_path_python_tail"
#: what was there before
_hooks: list[Any] = []


def tell_of_mixtures(wrapping: Wrapping) -> None:
    """Add a note to what a script with divided tensors ends with, if it is that."""
    if (wrapping.plan.shards_parameters or wrapping.plan.mesh.tp > 1) and not _hooks:
        _hooks.append(sys.excepthook)
        sys.excepthook = _with_note


def _with_note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if _is_of_mixture(error, trace):
        error.add_note(f"{MIXTURE.means}: {MIXTURE.change}")
    _hooks[0](kind, error, trace)


def _is_of_mixture(error: BaseException, trace: TracebackType | None) -> bool:
    if isinstance(error, AssertionError):
        return any(frame.name == _WRITES_TO_PLAIN for frame in traceback.extract_tb(trace)[-1:])
    return isinstance(error, RuntimeError) and MIXTURE.says.search(str(error)) is not None
