"""How often a training script on two processes does not end well: DDP on Gloo, as users write it.

    python benchmarks/exits.py [RUNS]

The script ends with the model still held by the module, which makes plain DDP on Gloo abort in some runs
(https://github.com/pytorch/pytorch/issues/190489); wrapped by hand it is the control.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = 50
TRAINING = """
import sys
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
if sys.argv[1] != "auto_parallelize":
    dist.init_process_group("gloo")
if sys.argv[1] == "by hand":
    model = nn.parallel.DistributedDataParallel(model)
else:
    import parastrat
    from parastrat.plan import Backend, Mesh, Plan
    from parastrat.workload import Precision

    plan = Plan(mesh=Mesh(dp_replicate=2), micro_batch_size=8, gradient_accumulation_steps=1,
                precision=Precision.FP32, backend=Backend.GLOO)
    model = parastrat.auto_parallelize(model, plan=plan)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    model(torch.randn(8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[1] in ("by hand", "auto_parallelize, in a group that the script ends"):
    dist.destroy_process_group()
"""
#: how the model is wrapped, and who begins and ends the process group
OURS = (
    "auto_parallelize",
    "auto_parallelize, in the script's group",
    "auto_parallelize, in a group that the script ends",
)
BY_HAND = "by hand"


def main() -> None:
    """Print how many runs had a process that did not end with 0, and how; exit 1 if one of ours had."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "training.py")
        script.write_text(TRAINING, encoding="utf-8")
        bad = {how: sum(_ends_badly(script, how) for _ in range(runs)) for how in (*OURS, BY_HAND)}
    for how, count in bad.items():
        print(f"{how}: {count} of {runs} runs did not end well")
    sys.exit(1 if any(bad[how] for how in OURS) else 0)


def _ends_badly(script: Path, how: str) -> bool:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), how],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [process.communicate()[1] for process in processes]
    for rank, process in enumerate(processes):
        if process.returncode:
            print(f"{how}: rank {rank} ended with {process.returncode}, and last said:", flush=True)
            print("".join(said[rank].splitlines(keepends=True)[-5:]), flush=True)
    return any(process.returncode for process in processes)


if __name__ == "__main__":
    main()
