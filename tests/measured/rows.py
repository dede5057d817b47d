"""A measured run to vary."""

from __future__ import annotations

from typing import Any

from parastrat.measured import MeasuredRow

_USUAL: dict[str, Any] = {
    "id": "here-1",
    "model": "llama-3-8b",
    "gpus": 8,
    "stack": "torch",
    "hardware": "dgx-h100",
    "precision": "bf16",
    "fsdp": "zero3",
    "act_ckpt": "full",
    "micro_batch": 2,
    "global_batch": 32,
    "seq_len": 8192,
}


def run(**fields: Any) -> MeasuredRow:
    """Return Llama 3 8B on eight H100, sharded, with what is given in its place."""
    return MeasuredRow(**(_USUAL | fields))
