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
