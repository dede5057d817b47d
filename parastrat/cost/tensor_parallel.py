"""Seconds of collectives on activations between the ranks of tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost.communication import Group, all_reduce_s, ring_s
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.model import Block

#: half of an all-reduce is an all-gather, which moves casted elements: Transformer Engine casts before it
#: gathers, as torchao's Float8ColwiseParallel does; what is reduce-scattered stays in bf16. With a scale
#: for each row all does (torchtitan @b5bcd76, components/quantization/float8.md)
_FP8_PAYLOAD = 0.75
#: elements of four bits, sixteen of which share a scale of eight, over 16 bits; and 16 bits, as above
#: (transformer_engine/pytorch/distributed.py @d0067d0, _all_gather_nvfp4)
_FP4_PAYLOAD = ((4 + 8 / 16) / 16 + 1) / 2


def each(blocks: Sequence[Block], name: str) -> Any:
    """Return a field of every block, beside plans."""
    return np.array([[getattr(block, name)] for block in blocks], dtype=float)


def tensor_parallel_s(facts: Facts, blocks: Sequence[Block], c: Columns, fabric: Fabric) -> Any:
    """Return what products do not hide of collectives of tensor parallelism, seconds, blocks before plans.

    Of each block forward and backward, without those that recompute repeats.
    """
    count = each(blocks, "tensor_parallel_collectives")
    if not count.any():
        return 0.0
    payload = each(blocks, "tensor_parallel_bytes") * (c.micro_batch_size / c.cp)
    payload = np.where(each(blocks, "unit"), _payload(facts), 1.0) * payload
    group = Group(ranks=c.tp, stride=1)
    tensor = all_reduce_s(payload, group, fabric)
    if np.any(c.sequence_parallel):
        # gathered before products and reduce-scattered behind: halves that no switch does in one
        tensor = np.where(c.sequence_parallel, 2 * ring_s(payload, group, fabric), tensor)
    shown = 1 - np.where(c.tp <= facts.hardware.scale_up_devices, _hidden(facts, c), 0.0)
    return 2 * count * tensor * shown


def _payload(facts: Facts) -> float:
    """Return what collectives of products' operands and results move, over all of it in 16 bits."""
    if facts.workload.precision is not Precision.FP8 or facts.stack.scales_rows:
        return 1.0
    return _FP4_PAYLOAD if facts.stack.casts_four_bits else _FP8_PAYLOAD


def _hidden(facts: Facts, c: Columns) -> Any:
    """Return the share of collectives of tensor parallelism that products hide.

    Products run beside pieces that ranks take from each other's memory, over NVLink
    (https://github.com/NVIDIA/TransformerEngine examples/pytorch/comm_gemm_overlap/README.md @39c30c5). In
    four bits there are no such pieces (transformer_engine/pytorch/module/base.py @d0067d0,
    fill_userbuffers_buffer_for_all_gather: "Unsupported quantizer"), and recipes turn the overlap off
    (https://github.com/NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/perf_recipes/llama @067f987,
    nvfp4_config: tp_comm_overlap = False).
    """
    stack = facts.stack
    return 0.0 if stack.casts_four_bits else np.where(c.async_tp, stack.async_tp_overlap, stack.tp_overlap)
