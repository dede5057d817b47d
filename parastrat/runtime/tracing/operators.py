"""What one ATen operator computes and moves, from the shapes that a trace shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from parastrat.model import OperatorKind, Split
from parastrat.runtime.tensors.leaves import tree_tensors
from parastrat.runtime.tensors.storages import storage_of

_ATEN = torch.ops.aten

FLASH = (
    _ATEN._scaled_dot_product_flash_attention.default,  # noqa: SLF001  (operators have no public names)
    _ATEN._scaled_dot_product_efficient_attention.default,  # noqa: SLF001
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,  # noqa: SLF001
    _ATEN._scaled_dot_product_cudnn_attention.default,  # noqa: SLF001
)
#: index of ``is_causal`` among the arguments of each
_CAUSAL = dict(zip(FLASH, (4, 6, 4, 6), strict=True))

#: position of the left and the right factor of each product
PRODUCTS = {
    _ATEN.mm.default: (0, 1),
    _ATEN.addmm.default: (1, 2),
    _ATEN.bmm.default: (0, 1),
    _ATEN.baddbmm.default: (1, 2),
}
_GROUPED = _ATEN._grouped_mm.default  # noqa: SLF001
_CONVOLUTION = _ATEN.convolution.default
_EMBEDDING = _ATEN.embedding.default
#: norms over more than a row take their statistics first and read their input again for the output
_TWICE_READ = frozenset(
    {
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_batch_norm_with_update",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "native_group_norm",
    }
)
_RECURRENT = frozenset({_ATEN.mkldnn_rnn_layer.default})
#: bytes that a recurrent layer keeps for backward, for each element of its output, by the bytes of one.
#: Fake tensors have none; oneDNN, which runs them on CPUs, does (torch 2.13, 336 to 512 positions of
#: 128 to 640 features: 61 to 63 in fp32, 43 to 45 in bf16, of which it has some in fp32). cuDNN's are not
#: stated; four gates, two states and a few more are fewer
_RECURRENT_KEPT = {4: 62.0, 2: 44.0}
#: memory without values
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator of a forward, for the whole micro-batch of the trace."""

    kind: OperatorKind
    flops: float
    bytes: float
    m: int = 0
    n: int = 0
    k: int = 0
    #: of a convolution, how often it reads an element of its image
    reuse: float = 1.0
    weighted: bool = False
    causal: bool = False
    #: what tensor parallelism divides of it, and which side of a product
    split: Split = Split.REPLICATED
    split_side: str = ""
    #: heads of an attention; of other products of activations those of all samples
    heads: int = 0


def call_of(
    func: Any, args: tuple[Any, ...], result: Any, is_parameter: Callable[[torch.Tensor], bool]
) -> Call | None:
    """Return what an operator does; None for views, and for memory without values."""
    outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    if not outputs or func.overloadpacket.__name__ in _ALLOCATIONS:
        return None
    inputs = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    if not func._schema.is_mutable and _is_view(outputs, inputs):  # noqa: SLF001  (no public accessor)
        return None
    moved = sum(map(moved_bytes, inputs)) + sum(map(moved_bytes, outputs))
    if func.overloadpacket.__name__ in _TWICE_READ:
        moved += moved_bytes(inputs[0])
    if func in PRODUCTS:
        return _product(args, PRODUCTS[func], moved, is_parameter)
    if func in FLASH:
        return _attention(func, args, moved)
    if func is _CONVOLUTION:
        return _convolution(args, outputs[0], moved)
    if func is _GROUPED:
        return _grouped(args, outputs[0], moved)
    if func in _RECURRENT:
        weights = sum(tensor.numel() for tensor in inputs if is_parameter(tensor))
        steps = prod(args[0].shape[:2])
        return Call(kind=OperatorKind.RECURRENT, flops=2 * weights * steps, bytes=moved, weighted=True)
    looked_up = func is _EMBEDDING
    return Call(
        kind=OperatorKind.EMBEDDING if looked_up else OperatorKind.ELEMENTWISE,
        flops=0,
        bytes=2 * moved_bytes(outputs[0]) if looked_up else moved,
    )


def with_workspace(func: Any, result: Any) -> Any:
    """Return what an operator made, on fake tensors, with what it keeps for backward beside its outputs.

    Layer norm's statistics are in fp32 on accelerators, and on CPUs where its weights are; fake tensors
    have them in the format of its input.
    """
    if func is _ATEN.native_layer_norm.default:
        output, *statistics = result
        return (output, *(each.new_empty(each.shape, dtype=_wide(each)) for each in statistics))
    if func not in _RECURRENT:
        return result
    output, *states, workspace = result
    kept = round(_RECURRENT_KEPT[output.itemsize] * output.numel())
    return (output, *states, workspace.new_empty(kept))


def _wide(statistics: torch.Tensor) -> torch.dtype:
    return torch.promote_types(statistics.dtype, torch.float32)


def written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that an operator writes to."""
    if not func._schema.is_mutable:  # noqa: SLF001  (no public accessor)
        return []
    found = []
    for place, argument in enumerate(func._schema.arguments):  # noqa: SLF001
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            found += tree_tensors(given)
    return found


def moved_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes to read or write a tensor once; what expands is read once."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())


def _is_view(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> bool:
    held = set(map(storage_of, inputs))
    return all(storage_of(tensor) in held for tensor in outputs)


def _product(
    args: tuple[Any, ...],
    places: tuple[int, int],
    moved: float,
    is_parameter: Callable[[torch.Tensor], bool],
) -> Call:
    left, right = args[places[0]], args[places[1]]
    batch = left.shape[0] if left.ndim == 3 else 1
    rows, inner = left.shape[-2:]
    columns = right.shape[-1]
    m, n = batch * rows, columns
    if is_parameter(left) and not is_parameter(right):
        m, n = batch * columns, rows
    return Call(
        kind=OperatorKind.MATMUL,
        flops=2.0 * batch * rows * inner * columns,
        bytes=moved,
        m=m,
        n=n,
        k=inner,
        weighted=is_parameter(left) or is_parameter(right),
        heads=batch if left.ndim == 3 else 0,
    )


def _attention(func: Any, args: tuple[Any, ...], moved: float) -> Call:
    query, key, value = args[:3]
    batch, heads, rows, qk = query.shape
    columns = key.shape[-2]
    place = _CAUSAL[func]
    causal = bool(len(args) > place and args[place])
    flops = 2.0 * batch * heads * rows * columns * (qk + value.shape[-1])
    return Call(
        kind=OperatorKind.ATTENTION,
        flops=flops / 2 if causal else flops,
        bytes=moved,
        m=batch * heads * rows,
        n=max(columns // 2, 1) if causal else columns,
        k=(qk + value.shape[-1]) // 2,
        causal=causal,
        heads=gcd(heads, key.shape[1]),
    )


def _convolution(args: tuple[Any, ...], output: torch.Tensor, moved: float) -> Call:
    """Return a convolution as the product it amounts to: positions by output by input channels."""
    weight, strides, transposed = args[1], args[3], args[6]
    # a transposed one's weight is (in, out / groups, ...) and is applied at every input position
    positions = args[0] if transposed else output
    m = positions.numel() // positions.shape[1]
    n, k = weight.shape[0], prod(weight.shape[1:])
    return Call(
        kind=OperatorKind.CONVOLUTION,
        flops=2.0 * m * n * k,
        bytes=moved,
        m=m,
        n=n,
        k=k,
        # a transposed one writes so often what others read
        reuse=prod(weight.shape[2:]) / prod(strides),
        weighted=True,
    )


def _grouped(args: tuple[Any, ...], output: torch.Tensor, moved: float) -> Call:
    m, k = prod(args[0].shape[:-1]), args[0].shape[-1]
    n = output.shape[-1]
    return Call(
        kind=OperatorKind.GROUPED_MATMUL, flops=2.0 * m * n * k, bytes=moved, m=m, n=n, k=k, weighted=True
    )
