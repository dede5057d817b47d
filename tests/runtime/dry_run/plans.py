"""A plan file that several tests dry-run."""

from __future__ import annotations

#: FSDP2 on four ranks
PLAN = """
schema = "parastrat.plan/1"

[plan]
dp_shard = 4
shard = "parameters"
micro_batch_size = 2
gradient_accumulation_steps = 1
precision = "fp32"
backend = "nccl"
"""

#: of two ranks, with two micro-batches a step
_DIVIDED = """
schema = "parastrat.plan/1"

[plan]
shard = "none"
reshard_after_forward = false
micro_batch_size = 2
gradient_accumulation_steps = 2
precision = "fp32"
backend = "nccl"
"""
CONTEXT_PARALLEL = _DIVIDED.replace("none", "parameters").replace("false", "true") + "cp = 2\n"
TENSOR_PARALLEL = f"{_DIVIDED}tp = 2\nsequence_parallel = true\nloss_parallel = true\n"
PIPELINED = f'{_DIVIDED}pp = 2\npp_schedule = "1F1B"\n'
