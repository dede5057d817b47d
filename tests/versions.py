"""What some releases of torch do not have: tests of it say why they are left out."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining import schedules

#: FSDP2 and what is built on it send zeros for experts that no token of a rank chose
reduces_unused = pytest.mark.skipif(
    not hasattr(FSDPModule, "set_reduce_scatter_unused_params"),
    reason=f"FSDP2 of torch {torch.__version__} leaves out what a rank did not use: such plans are refused",
)
#: DTensors follow views that take a divided dimension apart, such as fused queries, keys and values
follows_views = pytest.mark.skipif(
    not hasattr(schedules, "InferenceMode"),
    reason=f"torch {torch.__version__} follows no views of a divided dimension: such layers stay whole",
)
#: stages may give something else than they pass on
free_outputs = pytest.mark.skipif(
    not hasattr(schedules, "InferenceMode"),
    reason=f"pipelines of torch {torch.__version__} hold the last stage's output against what stages pass: "
    "emitted ones are for 2.13",
)
#: in its first step a stage sends nothing but what the plan has it send
sends_no_greeting = pytest.mark.skipif(
    not hasattr(schedules, "InferenceMode"),
    reason=f"pipelines of torch {torch.__version__} send each neighbour one number before their first step",
)
#: graphs of forwards that return dataclasses without a hash
exports_dataclasses = pytest.mark.skipif(
    not hasattr(schedules, "InferenceMode"),
    reason=f"torch {torch.__version__} exports no forward that returns a dataclass: tp refuses it",
)
#: gradients behind a collective in what is compiled
follows_collectives = pytest.mark.skipif(
    not hasattr(schedules, "InferenceMode"),
    reason=f"torch {torch.__version__} loses gradients of collectives in compiled blocks: tp refuses these",
)
