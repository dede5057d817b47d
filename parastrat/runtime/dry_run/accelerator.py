"""An accelerator that a script believes in: its device's name stands for fake tensors on the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode

from parastrat.runtime.dry_run.values import is_real

if TYPE_CHECKING:
    from parastrat.runtime.dry_run.values import Values
    from parastrat.runtime.dry_run.watch import Watch

_KIND = "cuda"


@contextmanager
def pretended_accelerator(values: Values, watch: Watch, devices: int, own: int) -> Iterator[None]:
    """Let a script find ``devices`` of a kind here, and put tensors on the one of number ``own``."""
    with ExitStack() as stack:
        for name, answer in _answers(watch, devices, own).items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        for name, answer in _of_any_kind(devices, own).items():
            stack.enter_context(patch.object(torch.accelerator, name, answer))
        stack.enter_context(patch.object(torch, "set_default_device", _on_host(torch.set_default_device)))
        for kind in (torch.autocast, DeviceMesh):
            stack.enter_context(patch.object(kind, "__init__", _on_host(kind.__init__)))
        stack.enter_context(patch.object(nn.Module, "to", _moves_modules(values, watch)))
        stack.enter_context(patch.object(nn.Module, "cuda", lambda module, *_: module.to(_KIND)))
        stack.enter_context(_Moves(values, watch))
        yield


def _answers(watch: Watch, devices: int, own: int) -> dict[str, Any]:
    """Return what stands for the functions of ``torch.cuda``."""
    nothing = ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats", "init", "ipc_collect")
    contexts = ("device", "stream")
    return {
        **dict.fromkeys(nothing, _nothing),
        **dict.fromkeys(contexts, _no_context),
        **dict.fromkeys(("Stream", "Event", "current_stream", "default_stream"), _Order),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: True,
        # optimizers ask; a torch that is built for CUDA would look for a driver
        "is_current_stream_capturing": lambda: False,
        "device_count": lambda: devices,
        "current_device": lambda: own,
        "memory_allocated": lambda *_: watch.live,
        "memory_reserved": lambda *_: watch.live,
        "max_memory_allocated": lambda *_: watch.peak,
        "max_memory_reserved": lambda *_: watch.peak,
    }


def _of_any_kind(devices: int, own: int) -> dict[str, Any]:
    """Return what stands for the functions of ``torch.accelerator``."""
    return {
        **dict.fromkeys(("set_device_index", "set_device_idx", "synchronize", "set_stream"), _nothing),
        "is_available": lambda: True,
        "current_accelerator": lambda **_: torch.device(_KIND),
        "device_count": lambda: devices,
        "current_device_index": lambda: own,
        # optimizers of torch 2.14 ask it whether a graph is captured
        "current_stream": _Order,
    }


def _nothing(*_args: Any, **_keywords: Any) -> None:
    return None


def _no_context(*_args: Any, **_keywords: Any) -> Any:
    return nullcontext()


class _Order(SimpleNamespace):
    """A stream or an event: on fake tensors everything has happened."""

    def __init__(self, *_args: Any, **_keywords: Any) -> None:
        super().__init__()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_error: object) -> None:
        return None

    def elapsed_time(self, _end: object) -> float:
        return 1.0

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    record = synchronize = wait_stream = wait_event = wait = _nothing


def _host(value: Any) -> Any:
    """Return the host in the place of the accelerator; other values as they are."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == _KIND else value
    if isinstance(value, str) and value.partition(":")[0] == _KIND:
        return "cpu"
    return value


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **keywords: Any) -> Any:
        return function(*map(_host, args), **{name: _host(value) for name, value in keywords.items()})

    return called


def _moves_modules(values: Values, watch: Watch) -> Callable[..., nn.Module]:
    """Return what stands for ``nn.Module.to``: parameters are on the device as soon as they are made."""
    convert: Callable[..., nn.Module] = nn.Module.to

    def moved(module: nn.Module, *args: Any, **keywords: Any) -> nn.Module:
        more = [*args[1:], *(value for name, value in keywords.items() if name != "non_blocking")]
        if not (args and _is_device(args[0]) and not any(isinstance(each, torch.dtype) for each in more)):
            return convert(
                module, *map(_host, args), **{key: _host(each) for key, each in keywords.items()}
            )
        for part in module.modules():
            for name, buffer in part.named_buffers(recurse=False):
                part._buffers[name] = values.moved(buffer, watch)  # noqa: SLF001  (as ``to`` does)
        return module

    return moved


class _Moves(TorchFunctionMode):
    """Takes the accelerator's name in calls, and makes fake what is moved there."""

    def __init__(self, values: Values, watch: Watch) -> None:
        super().__init__()
        self._values, self._watch = values, watch

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        own = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if func is torch.Tensor.cuda and own is not None:
            return self._values.moved(own, self._watch)
        if func is torch.Tensor.tolist and isinstance(own, FakeTensor):
            return _nested(own.shape, self._values.take(own.dtype))
        moves = func is torch.Tensor.to and any(map(_is_device, (*args[1:], keywords.get("device"))))
        if moves and len(args) > 1 and type(args[1]) is int:
            args = (args[0], _KIND, *args[2:])
        before = self._values.making_on_device
        self._values.making_on_device = before or _makes_on_device(keywords)
        try:
            result = func(*map(_host, args), **{name: _host(value) for name, value in keywords.items()})
        finally:
            self._values.making_on_device = before
        return self._values.moved(result, self._watch) if moves else result


def _is_device(value: Any) -> bool:
    """Whether a tensor that is moved there is on the device: not where the host is named outright."""
    if isinstance(value, str):
        return value.partition(":")[0] == _KIND
    return isinstance(value, torch.device | FakeTensor) or type(value) is int


def _makes_on_device(keywords: dict[str, Any]) -> bool:
    """Whether a function with these keywords makes tensors of the device.

    A device of the host, as an object, is where a fake tensor says that it is; torch itself makes indices
    there.
    """
    device, dtype = keywords.get("device"), keywords.get("dtype")
    if isinstance(device, torch.device) and device.type == "cpu":
        return dtype is None or is_real(dtype)
    return device is not None and _is_device(device)


def _nested(shape: torch.Size, value: Any) -> Any:
    return [_nested(shape[1:], value) for _ in range(shape[0])] if shape else value
