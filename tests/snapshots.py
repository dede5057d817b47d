"""Memory snapshots in the format of ``torch.cuda.memory._dump_snapshot``, made up where there is no GPU.

The format is that of the docstring of ``torch.cuda.memory._snapshot`` in torch 2.13; a block that a stream
still uses is there called ``active_awaiting_free``, and ``active_pending_free`` by torch's C++.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

TORCH = "/site-packages/torch"
PARAMETERS = [(f"{TORCH}/nn/modules/module.py", "convert"), (f"{TORCH}/nn/modules/module.py", "_apply")]
FORWARD = [
    (f"{TORCH}/nn/modules/linear.py", "forward"),
    (f"{TORCH}/nn/modules/module.py", "_call_impl"),
    ("train.py", "<module>"),
]
STATES = [(f"{TORCH}/optim/adam.py", "_init_group"), (f"{TORCH}/optim/adam.py", "step")]
STEPPING = [(f"{TORCH}/optim/adam.py", "_multi_tensor_adam"), (f"{TORCH}/optim/adam.py", "step")]
#: of a thread of the autograd engine, which has no frames of Python
BACKWARD = [("??", "at::native::mm"), ("??", "torch::autograd::Engine::evaluate_function")]
ACCUMULATED = [("??", "torch::autograd::AccumulateGrad::apply"), *BACKWARD]
GATHERED = [(f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", "foreach_all_gather"), *FORWARD]
#: checkpointing runs a forward inside of backward
RECOMPUTED = [*FORWARD, (f"{TORCH}/autograd/graph.py", "_engine_run_backward")]

Stack = list[tuple[str, str]]


def frames(stack: Stack) -> list[dict[str, Any]]:
    return [{"filename": filename, "line": 1, "name": name} for filename, name in stack]


def block(address: int, size: int, stack: Stack | None = None, **fields: Any) -> dict[str, Any]:
    known = {"frames": frames(stack)} if stack is not None else {}
    return {"address": address, "size": size, "requested_size": size, "state": "active_allocated"} | (
        known | fields
    )


def segment(blocks: list[dict[str, Any]], *, device: int = 0, spare: int = 0) -> dict[str, Any]:
    """Return a segment of these blocks, and of an inactive one behind them."""
    used = sum(each["size"] for each in blocks)
    end = blocks[-1]["address"] + blocks[-1]["size"] if blocks else 0
    free = [block(end, spare, state="inactive")] if spare else []
    return {
        "device": device,
        "address": blocks[0]["address"] if blocks else 0,
        "total_size": used + spare,
        "allocated_size": used,
        "active_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "blocks": [*blocks, *free],
    }


def event(action: str, address: int, size: int, stack: Stack | None = None) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames(stack or [])}


def write(path: Path, segments: list[dict[str, Any]], traces: list[list[dict[str, Any]]]) -> Path:
    """Write a snapshot, and return where it is."""
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": traces}))
    return path


def trained() -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Return a backward's end and its history; at its peak 4 MiB of activations and 2 in use were there.

    At the end are 10 MiB of parameters, the first 2 from before the history, and 10 of gradients.
    """
    mib = 2**20
    history = [
        event("segment_alloc", 0, 64 * mib),
        event("alloc", 2 * mib, 8 * mib, PARAMETERS),
        event("alloc", 10 * mib, 4 * mib, FORWARD),
        event("alloc", 14 * mib, 2 * mib, BACKWARD),
        event("alloc", 20 * mib, 10 * mib, ACCUMULATED),
        event("free_requested", 10 * mib, 4 * mib),
        event("free_completed", 10 * mib, 4 * mib),
        event("free_requested", 14 * mib, 2 * mib),
        event("free_completed", 14 * mib, 2 * mib),
        event("snapshot", 0, 0),
    ]
    blocks = [
        block(0, 2 * mib, state="active_allocated"),
        block(2 * mib, 8 * mib, PARAMETERS),
        block(10 * mib, 10 * mib, state="inactive"),
        block(20 * mib, 10 * mib, ACCUMULATED),
        block(30 * mib, 34 * mib, state="inactive"),
    ]
    return [segment(blocks)], [history]
