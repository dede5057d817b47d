"""Stacks with constants that no published run was fitted to."""

from __future__ import annotations

from dataclasses import replace

from parastrat.profiles import load_stack
from parastrat.stack import Kernels, Stack

#: constants that nothing here was fitted to. Launches: operators that eager torch dispatches for each of
#: the closed form (profiles/stacks/torch.toml), fused kernels an eighth to a sixth of it; traffic: what is
#: counted over 0.82 of the memory's rate, which an addition of 16 to 64 million elements reaches on an
#: A100 (triton-lang/triton python/test/regression/test_performance.py @00693c1), a tenth more than the
#: least where chains are fused, a third where attention's scores are kept; a network at 80 % of its rate.
#: ZeRO and FSDP1 hide less than half of their traffic, FSDP2, which prefetches, most (the middle of what is
#: known of each)
#:
#: Megatron before flash attention: a layer of Megatron-DeepSpeed @7491937 takes a processor 1.13 times as
#: long as one of GPT-2 in transformers, on tiny tensors, forward and backward alike; of the 45 operators of
#: that it makes 51, over 11 of closed form
NEUTRAL = {
    Kernels.EAGER: {"launches_per_operator": 4.0, "elementwise_factor": 1.2},
    Kernels.COMPILED: {"launches_per_operator": 0.5, "elementwise_factor": 1.1},
    Kernels.FUSED: {"launches_per_operator": 0.7, "elementwise_factor": 1.1},
    Kernels.FUSED_MATH: {"launches_per_operator": 4.6, "elementwise_factor": 1.3},
}
_NEUTRAL_ALL = {
    "network_efficiency": 0.8,
    "matmul_factor": 1.0,
    "attention_factor": 1.0,
    "dp_overlap": 0.4,
    "zero_overlap": 0.4,
    "fsdp_overlap": 0.4,
}
#: of constants that some stacks have alone: half or less of a collective is hidden where anything is; rows
#: that are routed are written and read once more on their way; an expert's product takes a cast of its
#: rows, one of its weights and itself
_WHERE_STATED = {
    "tp_overlap": 0.4,
    "async_tp_overlap": 0.4,
    "routed_traffic_factor": 2.0,
    "launches_per_expert": 3.0,
}
#: values of these where a stack hides nothing, or has one kernel for all experts and all rows
_WITHOUT = (0.0, 1.0)
_PREFETCHING = {
    "torch": {"fsdp_overlap": 0.7, "dp_overlap": 0.7},
    "torch-compile": {"fsdp_overlap": 0.7, "dp_overlap": 0.7},
    # Megatron-FSDP gathers ahead as FSDP2 does:
    # https://github.com/NVIDIA/Megatron-LM megatron/core/distributed/fsdp/src/README.md
    "megatron-core": {"fsdp_overlap": 0.7},
}


def neutral(name: str) -> Stack:
    """Return a stack whose fitted constants are what was known without any of these runs."""
    stack = load_stack(name)
    own = {field: value for field, value in _WHERE_STATED.items() if getattr(stack, field) not in _WITHOUT}
    constants = own | _NEUTRAL_ALL | NEUTRAL[stack.kernels] | _PREFETCHING.get(name, {})
    dispatch = stack.launches_per_dispatch / stack.launches_per_operator
    constants["launches_per_dispatch"] = constants["launches_per_operator"] * dispatch
    return replace(stack, **constants)
