"""torch's fake tensors, whose operators are looked up sooner.

torch remembers what an operator made of fake tensors, and finds it by seventeen traits of each: on the way
it makes a record of them, asks for the memory format, and looks into each size. Most of the time that a
forward on fake tensors takes is this. Of a plain tensor its shape, strides and formats tell as much.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_DEVICE = torch.ops.prim.device.default
#: what operators are given beside tensors, mostly
_CONSTANTS = {int, float, bool, type(None), str, torch.dtype, torch.device, torch.layout}


class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Makes fake tensors, on any device, beside others that have values."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def _prep_args_for_hash(self, result: list[object], args: Any, state: Any, kept: list[object]) -> None:
        """Add what tells the arguments of an operator apart to ``result``.

        Numbers have their types beside them: torch makes another format of 1.0 than of 1.
        """
        if not isinstance(args, list | tuple):
            super()._prep_args_for_hash(result, args, state, kept)
            return
        result.append((type(args), len(args)))
        for argument in args:
            if type(argument) is FakeTensor and self._is_plain(argument):
                result.append(_traits(argument))
            elif type(argument) in _CONSTANTS:
                result.append((type(argument), argument))
            else:
                super()._prep_args_for_hash(result, (argument,), state, kept)

    def _is_plain(self, tensor: FakeTensor) -> bool:
        """Return whether torch looks up operators on a tensor, by traits that all such tensors have."""
        return (
            tensor.fake_mode is self
            and tensor.constant is None
            and tensor.layout is torch.strided
            and not tensor._has_symbolic_sizes_strides  # noqa: SLF001  (no public accessor)
        )


def is_question(func: Any) -> bool:
    """Return whether torch asks something of a tensor, rather than have it computed with."""
    return bool(func.namespace == "prim")


def asked(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what torch asks of a tensor: most of the time for its device, which fake ones know."""
    if func is _DEVICE and type(args[0]) is FakeTensor:
        return args[0].fake_device
    return func(*args, **kwargs)


def _traits(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return all that torch's own ``TensorMetadata`` knows of a strided tensor."""
    return (
        tensor.dtype,
        tensor.shape,
        tensor.stride(),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
        tensor.device,
        tensor.requires_grad,
        tensor.is_quantized,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.is_inference(),
    )
