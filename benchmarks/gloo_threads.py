"""How often collectives that end together corrupt the heap: Gloo's groups with two threads, and with one.

    python benchmarks/gloo_threads.py [RUNS]

Nothing but torch is called: a process with a group of its own lets all-gathers of DTensors' kind and
all-reduces end side by side. With two threads, as torch makes its groups (2.11 to 2.13), both write one
string; ``parastrat.runtime.communication.gloo`` says more.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

RUNS = 10
SIDE_BY_SIDE = """
import sys
from contextlib import nullcontext
import torch
import torch.distributed as dist
from parastrat.runtime.communication.gloo import one_gloo_thread

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
with one_gloo_thread() if sys.argv[1] == "1" else nullcontext():
    group = dist.new_group()
one = torch.ones(1)
for _ in range(1000):
    works = []
    for _ in range(250):
        works.append(group.allgather_into_tensor_coalesced([torch.empty(1)], [one]))
        works.append(group.allreduce([one]))
    for work in works:
        work.wait()
"""


def main() -> None:
    """Print how many runs of 500,000 collectives died, and of what; exit 1 if one of one thread did."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    died = {threads: _died(threads, runs) for threads in (2, 1)}
    for threads, reasons in died.items():
        said = "; ".join(f"{count} x {reason}" for reason, count in reasons.items()) or "nothing said"
        print(f"{threads} thread(s): {reasons.total()} of {runs} runs died ({said})")
    raise SystemExit(1 if died[1] else 0)


def _died(threads: int, runs: int) -> Counter[str]:
    """Return the last words of the runs that did not end well."""
    reasons: Counter[str] = Counter()
    for _ in range(runs):
        script = [sys.executable, "-W", "ignore", "-c", SIDE_BY_SIDE, str(threads)]
        run = subprocess.run(script, capture_output=True, text=True, check=False)
        if run.returncode:
            words = run.stderr.strip().splitlines()
            reasons[words[-1] if words else f"signal {-run.returncode}"] += 1
    return reasons


if __name__ == "__main__":
    main()
