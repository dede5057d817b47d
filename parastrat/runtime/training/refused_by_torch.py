"""A script that ends as torch refuses something of divided tensors is told what it means, and what to do.

One that copied its model before ``auto_parallelize``, as for an average of weights, has whole weights in
the copy, and parts in the model: torch asks to convert "all torch.Tensor to DTensor". Of an operator it
says that it "does not have a sharding strategy registered". Another method of a model than its forward,
such as ``encode_image``, and a part that is called by itself run past what makes its weights whole.
"""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from parastrat.failures import MIXTURE, OF_DIVIDED
from parastrat.runtime.wrapped import is_wrapped, wrapped_of

if TYPE_CHECKING:
    from types import TracebackType

    from parastrat.failures import Failure
    from parastrat.runtime.wrapping import Wrapping

#: torch's last function, where plain tensors were let in, as activations that are DTensors need it
_WRITES_TO_PLAIN = "_dispatch_fast_path_python_tail"
#: torch's functions by which a module is called, with its hooks
_CALLS = ("_wrapped_call_impl", "_call_impl")
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
        past = _past_forward(trace) if meant is MIXTURE else ""
        error.add_note(past or f"{meant.means}: {meant.change}")
    _hooks[0](kind, error, trace)


def _meant(error: BaseException, trace: TracebackType | None) -> Failure | None:
    if isinstance(error, AssertionError):
        writes = any(frame.name == _WRITES_TO_PLAIN for frame in traceback.extract_tb(trace)[-1:])
        return MIXTURE if writes else None
    if not isinstance(error, RuntimeError):  # NotImplementedError among them
        return None
    return next((each for each in OF_DIVIDED if each.says.search(str(error))), None)


def _past_forward(trace: TracebackType | None) -> str:
    """Return what runs a model's layers past its forward, and what to do; empty where nothing does."""
    frames = [(frame.f_locals.get("self"), frame.f_code.co_name) for frame, _ in traceback.walk_tb(trace)]
    run = [(part, name) for part, name in frames if isinstance(part, nn.Module)]
    if not run or not any(isinstance(own, DTensor) for own in run[-1][0].parameters(recurse=False)):
        return ""
    if any(is_wrapped(part) and name in _CALLS for part, name in run):
        return ""
    model, method = next(((part, name) for part, name in run if is_wrapped(part)), (None, ""))
    if model is None:
        part = next(
            (type(part).__name__ for part, name in run if name in _CALLS), type(run[-1][0]).__name__
        )
        return (
            f"the script calls {part} by itself, past the model's forward, in which alone its weights are "
            "whole: let the model's forward call it, as where it is told so by an argument"
        )
    change = f"let forward call it, as model(..., which={method!r})"
    if isinstance(model, FSDPModule) and wrapped_of(model).plan.mesh.tp == 1:
        change = (
            f"say torch.distributed.fsdp.register_fsdp_forward_method(model, {method!r}) behind "
            "auto_parallelize"
        )
    return f"{method} runs past the model's forward, in which alone its weights are whole: {change}"
