"""A model that a function builds on the meta device: what it did is recorded, to be done for real later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm  # it has no public name
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from parastrat.errors import ModelError, WrapError
from parastrat.runtime.first_values.replay import Record, Recorder
from parastrat.runtime.tensors.slots import check_shapes, slots_of

_HOST = torch.device("cpu")
#: what makes a layer's weight of others; the last two are those of ``torch.nn.utils`` before torch 2.0
_PARAMETRIZING: tuple[tuple[Any, str], ...] = (
    (parametrize, "register_parametrization"),
    (_SpectralNorm, "__init__"),
    (WeightNorm, "apply"),
    (SpectralNorm, "apply"),
)


def build_on_meta(build: Callable[[], Any]) -> tuple[Any, Record]:
    """Call ``build`` on the meta device; return what it built and what it did.

    Raises:
        ModelError: if the constructor needs real values, or leaves shapes open.
    """
    try:
        with torch.device("meta"), Recorder() as recorder, _parametrized_for_real(recorder.record):
            module = build()
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error).lower():
            raise
        raise ModelError(
            f"the model cannot be built on the meta device: {error}",
            hint="build it with from_config, and pass the folder of its weights as checkpoint=; or pass "
            "what from_pretrained returns, on every rank"
            if "from_pretrained" in str(error)
            else "keep values out of the constructor (.item(), .numpy()), or pass the built module",
        ) from error
    record = recorder.record
    if isinstance(module, nn.Module):
        check_shapes(module)
        named = [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
            *((name, part.__dict__[key]) for name, part, key in _meta_attributes(module)),
        ]
        record.origins = {name: tensor.detach() for name, tensor in named}
    return module, record


@contextmanager
def _parametrized_for_real(record: Record) -> Iterator[None]:
    """Let layers have values before their weights become those that are computed whenever they are read.

    What ``weight_norm`` and its like begin with follows from a layer's first weights; they stay as they are
    then, real ones on the host, and become those of rank 0.
    """
    layers = _Layers(record)

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def made(first: Any, *args: Any, **keywords: Any) -> Any:
            if isinstance(first, _SpectralNorm):  # is made of a weight before the layer gets it
                args = layers.real(args[0]), *args[1:]
            elif any(
                slot.is_meta for part in args if isinstance(part, nn.Module) for slot in slots_of(part)
            ):
                return function(first, *args, **keywords)  # it has drawn what it computes with
            else:
                layers.make_real(first, args[0])
            with torch.device(_HOST):
                return function(first, *args, **keywords)

        return made

    earlier = [(owner, name, getattr(owner, name)) for owner, name in _PARAMETRIZING]
    for owner, name, function in earlier:
        setattr(owner, name, of(function))
    try:
        yield
    finally:
        for owner, name, function in earlier:
            setattr(owner, name, function)


class _Layers:
    """Layers that get values while their model is built on the meta device.

    Args:
        record: of what its constructor did so far.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        #: by what they stand for
        self._made: dict[int, torch.Tensor] = {}

    def real(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values that a tensor would have now, the same each time; itself if there are none."""
        if not tensor.is_meta:
            return tensor
        if id(tensor) not in self._made:
            values = self._record.made(tensor, _HOST, draws=True)
            self._made[id(tensor)] = tensor if values is None else values
        return self._made[id(tensor)]

    def make_real(self, layer: nn.Module, key: str) -> None:
        """Give a layer's weight the values that it would have now, if those can be made."""
        held = layer._parameters  # noqa: SLF001  (nn.Module's setattr has side effects)
        weight = held.get(key)
        if weight is not None and weight.is_meta and not (values := self.real(weight)).is_meta:
            held[key] = nn.Parameter(values, weight.requires_grad)


def give_attributes(module: nn.Module, record: Record | None, device: torch.device) -> None:
    """Give tensors that are plain attributes, as Llama's own code keeps its rotary factors, their values.

    Args:
        module: as a callable built it on the meta device; others have their values.
        record: of the callable.
        device: of this process.

    Raises:
        WrapError: naming one that the constructor's record cannot make.
    """
    if record is None:
        return
    for name, part, key in _meta_attributes(module):
        values = record.replayed(name, device)
        if values is None:
            raise WrapError(
                f"{name} is a plain attribute without values: the model was built on the meta device, and "
                "what it holds cannot be made again",
                hint="make it a buffer (register_buffer) that reset_parameters() sets, or pass the built "
                "module",
            )
        part.__dict__[key] = values


def _meta_attributes(module: nn.Module) -> list[tuple[str, nn.Module, str]]:
    """Return the name, owner and key of each tensor on the meta device that is no parameter nor buffer."""
    return [
        (f"{path}.{key}" if path else key, part, key)
        for path, part in module.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, torch.Tensor) and value.is_meta and value.is_leaf
    ]
