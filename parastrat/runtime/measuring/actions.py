"""What is timed, as torch runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from parastrat.calibration import Operation
from parastrat.calibration.fitting import HEAD_DIM, HEADS
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.calibration import Wanted

#: operators of one launch measurement
LAUNCHES = 500
_DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16}


def action_of(wanted: Wanted, device: torch.device) -> Callable[[], object]:
    """Return a function that does once what is wanted; launches are ``LAUNCHES`` operators."""
    if wanted.operation.is_collective:
        return _collective(wanted.operation, wanted.bytes, device)
    dtype = _DTYPES[wanted.precision]
    if wanted.operation is Operation.MATMUL:
        m, n, k = wanted.sides
        left, right = (torch.randn(*sides, device=device, dtype=dtype) for sides in ((m, k), (k, n)))
        product = torch.empty(m, n, device=device, dtype=dtype)
        return lambda: torch.mm(left, right, out=product)
    if wanted.operation is Operation.ATTENTION:
        q, k_, v = (
            torch.randn(1, HEADS, wanted.sides[0], HEAD_DIM, device=device, dtype=dtype) for _ in range(3)
        )
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(q, k_, v, is_causal=True)
    if wanted.operation is Operation.LAUNCH:
        return _launches(device)
    if wanted.operation is Operation.MAKE:
        one = torch.ones(wanted.bytes // 4, device=device)
        return lambda: one + 1.0
    host = torch.device("cpu") if wanted.operation is Operation.UPLOAD else device
    source = torch.ones(wanted.bytes, dtype=torch.uint8, device=host)
    if wanted.operation is Operation.UPLOAD:
        source = source.pin_memory()
    target = torch.zeros(wanted.bytes, dtype=torch.uint8, device=device)
    return lambda: target.copy_(source, non_blocking=True)


def _launches(device: torch.device) -> Callable[[], object]:
    one = torch.ones((), device=device)

    def launch() -> None:
        for _ in range(LAUNCHES):
            one.add_(1.0)

    return launch


def _collective(operation: Operation, size: int, device: torch.device) -> Callable[[], object]:
    """Return a collective over all ranks; ``size`` are the bytes of the whole buffer."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    share = max(1, size // 4 // ranks)
    whole, part = torch.zeros(share * ranks, device=device), torch.zeros(share, device=device)
    other = torch.zeros_like(whole)
    if operation is Operation.SEND:
        return _exchange(whole, other, rank, ranks)
    # torch 2.13 renamed both
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    ways: dict[Operation, Callable[[], Any]] = {
        Operation.ALL_GATHER: lambda: gather(whole, part),
        Operation.REDUCE_SCATTER: lambda: scatter(part, whole),
        Operation.ALL_REDUCE: lambda: dist.all_reduce(whole),
        Operation.ALL_TO_ALL: lambda: dist.all_to_all_single(other, whole),
    }
    return ways[operation]


def _exchange(whole: torch.Tensor, other: torch.Tensor, rank: int, ranks: int) -> Callable[[], object]:
    """Return a message to the next rank of a pipeline, from even to odd ones."""

    def send() -> None:
        if rank % 2 == 0 and rank + 1 < ranks:
            dist.send(whole, rank + 1)
        elif rank % 2:
            dist.recv(other, rank - 1)

    return send
