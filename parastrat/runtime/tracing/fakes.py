"""A module on fake CPU tensors that takes the kernels a GPU would take.

Fake tensors have shapes and formats but no memory. Fake CUDA tensors abort the process on a torch without
CUDA, so the trace runs on fake CPU tensors and forces what differs: flash attention, and dropout with a
byte for a mask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import _meta_registrations, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from parastrat.runtime.tensors.slots import Slot, slots_of
from parastrat.runtime.untouched import untouched

_ATEN = torch.ops.aten
_attention = functional.scaled_dot_product_attention
_dropout = functional.dropout


@contextmanager
def fake_module(
    module: nn.Module, mode: FakeTensorMode, dtype: torch.dtype
) -> Iterator[tuple[dict[str, nn.Parameter], list[torch.Tensor]]]:
    """Put fake tensors in the place of a module's own for a while; ties stay ties.

    Floating-point parameters are of ``dtype``; buffers keep their format, as under FSDP2.

    Yields:
        The fake parameters by name (the first one of tied ones), and the other tensors.
    """
    with untouched(module):
        slots = slots_of(module)
        others = list(_plain_tensors(module))
        parameters: dict[str, nn.Parameter] = {}
        constants: list[torch.Tensor] = []
        try:
            for slot in slots:
                fake = _fake(slot, mode, dtype)
                slot.put(fake)
                if isinstance(fake, nn.Parameter):
                    parameters[slot.name] = fake
                else:
                    constants.append(fake)
            for owner, key, tensor in others:
                with mode:
                    vars(owner)[key] = torch.empty_like(tensor, device="cpu")
                constants.append(vars(owner)[key])
            _refresh_recurrent(module)
            if not module.training:
                module.train()
            yield parameters, constants
        finally:
            for slot in slots:
                slot.put(slot.tensor)
    _refresh_recurrent(module)


def _fake(slot: Slot, mode: FakeTensorMode, dtype: torch.dtype) -> torch.Tensor:
    tensor = slot.tensor
    short = slot.is_parameter and tensor.is_floating_point()
    with mode:
        fake = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=dtype if short else tensor.dtype, device="cpu"
        )
    return nn.Parameter(fake, requires_grad=tensor.requires_grad) if slot.is_parameter else fake


def fake_input(leaf: Any, dtype: torch.dtype | None = None) -> Any:
    """Return a leaf of a batch under a mode of fake tensors, in a number format if one is given."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    kind = dtype if dtype is not None and leaf.is_floating_point() else leaf.dtype
    return torch.empty_strided(leaf.size(), leaf.stride(), dtype=kind, device="cpu")


def _plain_tensors(module: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
    """Yield meta tensors that are plain attributes, neither parameters nor buffers."""
    for part in module.modules():
        for key, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor) and value.is_meta:
                yield part, key, value


def constant_names(module: nn.Module) -> list[str]:
    """Return the names of what ``fake_module`` yields beside parameters, in that order."""
    plain = {id(part): path for path, part in module.named_modules()}
    return [slot.name for slot in slots_of(module) if not slot.is_parameter] + [
        f"{plain[id(part)]}.{key}".lstrip(".") for part, key, _ in _plain_tensors(module)
    ]


def _refresh_recurrent(module: nn.Module) -> None:
    """Let recurrent layers, which list their weights aside, see the ones they have now."""
    for part in module.modules():
        if isinstance(part, nn.RNNBase):
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]  # noqa: SLF001


@contextmanager
def gpu_kernels() -> Iterator[None]:
    """Take a GPU's kernels, whoever calls them by whatever name, as for a batch with values."""
    with ExitStack() as stack:
        stack.enter_context(as_with_values())
        stack.enter_context(_Replaced())
        # calls from inside of torch (multi-head attention, nn.Dropout) are out of a function mode's sight
        stack.enter_context(patch.object(functional, "scaled_dot_product_attention", _within_modes))
        stack.enter_context(patch.object(functional, "dropout", byte_mask_dropout))
        yield


@contextmanager
def as_with_values() -> Iterator[None]:
    """Let libraries do for fake tensors what they do for a batch in training, without padding."""
    with ExitStack() as stack:
        stack.enter_context(_Numbers())
        stack.enter_context(patch.object(nn.Module, "_apply", _converted))
        if _checked_product is not None and _product is not None:
            stack.enter_context(patch.object(_meta_registrations, _CHECKED, _grouped))
        masking = sys.modules.get("transformers.masking_utils")
        answers: dict[str, Callable[[Any], Any]] = {
            # it takes fake tensors for a graph capture and then builds masks that training does without
            "is_tracing": lambda _: _never,
            # it looks at the positions' values, which say nothing here: one sequence a row
            "find_packed_sequence_indices": lambda _: _one_sequence,
            # attention goes without a mask where that of padding has no gap
            "_ignore_causal_mask_sdpa": _unpadded,
            "_ignore_bidirectional_mask_sdpa": _unpadded,
        }
        for name, answered in answers.items():
            if masking is not None and hasattr(masking, name):
                stack.enter_context(patch.object(masking, name, answered(getattr(masking, name))))
        yield


_apply: Callable[..., nn.Module] = nn.Module._apply  # noqa: SLF001  (what ``to`` and its like call)


def _converted(module: nn.Module, fn: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> nn.Module:
    """Leave a part that is in the format that its forward asks for; torch swaps fake tensors even then."""
    held = [*module.parameters(), *module.buffers()]
    return module if all(fn(tensor) is tensor for tensor in held) else _apply(module, fn, *args, **kwargs)


_CHECKED = "_meta_grouped_mm_common"
_checked_product: Any = getattr(_meta_registrations, _CHECKED, None)
_product: Any = getattr(_meta_registrations, "_create_grouped_mm_output_tensor", None)


def _grouped(mat_a: torch.Tensor, mat_b: torch.Tensor, **others: Any) -> Any:
    """Return a grouped product; of fake tensors torch takes bf16 alone, of real ones all formats."""
    if others.get("scale_a") is not None or mat_a.dtype is torch.bfloat16:
        return _checked_product(mat_a, mat_b, **others)
    return _product(mat_a, mat_b, others.get("offs"), others.get("out_dtype"))


def _within_modes(*args: Any, **kwargs: Any) -> torch.Tensor:
    """Attend by way of the function modes that are left here: checkpoints see attention so."""
    if torch._C._len_torch_function_stack():  # noqa: SLF001  (no public name)
        found: torch.Tensor = _attention(*args, **kwargs)
        return found
    return flash_attention(*args, **kwargs)


def _unpadded(question: Callable[..., bool]) -> Callable[..., bool]:
    """Return a question about a mask as it is answered where no sample is padded."""

    def answered(padding_mask: object = None, *args: Any, **kwargs: Any) -> bool:
        del padding_mask
        return question(None, *args, **kwargs)

    return answered


def _one_sequence(*_args: object, **_kwargs: object) -> None:
    return None


def _never(_tensor: object = None) -> bool:
    return False


class _Replaced(TorchFunctionMode):
    """Sees the original functions under names that were imported before."""

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is _attention:
            return flash_attention(*args, **(kwargs or {}))
        if func is _dropout:
            return byte_mask_dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


class _Numbers(TorchFunctionMode):
    """Reads tensors among numbers by operators; torch.tensor reads their memory."""

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.tensor and args and isinstance(args[0], list | tuple):
            args = (tree_map(_number, args[0]), *args[1:])
        if func is torch.Tensor.__format__:  # which writes the numbers of plain tensors alone
            return format(_number(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


def _number(leaf: Any) -> Any:
    return leaf.item() if isinstance(leaf, FakeTensor) and not leaf.ndim else leaf


def flash_attention(  # noqa: PLR0913, PLR0917  (torch's signature)
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attend with flash attention; with the memory-efficient kernel for masks, and for narrower values.

    Both read the number of heads from the shapes.
    """
    if query.device.type == "cpu" and not isinstance(query, FakeTensor):  # proofs have values
        own: torch.Tensor = _attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return own
    if isinstance(attn_mask, CausalBias):  # which says how the kernel masks, and is never made
        attn_mask, is_causal = None, True
    device = query.device.type
    if torch.is_autocast_enabled(device):  # which casts for the function, not for the operators below
        short = torch.get_autocast_dtype(device)
        query, key, value = query.to(short), key.to(short), value.to(short)
    if query.ndim != 4:
        found: torch.Tensor = _attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
        return found
    repeat = query.shape[1] // key.shape[1]
    narrow = query.shape[-1] != value.shape[-1]  # flash attention takes one width for all
    if attn_mask is None and not narrow:
        plain: torch.Tensor = _ATEN._scaled_dot_product_flash_attention(  # noqa: SLF001  (operators' names)
            query, key, value, dropout_p, is_causal, scale=scale
        )[0]
        return plain
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            # as torch does, in one kernel
            shown, hidden = (query.new_full((), value) for value in (0.0, float("-inf")))
            bias = torch.where(bias, shown, hidden)
        bias = bias.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    masked: torch.Tensor = _ATEN._scaled_dot_product_efficient_attention(  # noqa: SLF001
        query, key, value, bias, torch.is_grad_enabled(), dropout_p, is_causal, scale=scale
    )[0]
    return masked


def byte_mask_dropout(
    input: torch.Tensor,  # noqa: A002  (torch's signature)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Drop elements; backward keeps a mask of one byte each."""
    if not training or p == 0:
        return input
    dropped: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(dropped) if inplace else dropped
