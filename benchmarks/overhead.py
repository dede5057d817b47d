"""What ``auto_parallelize`` costs over the same plan written by hand.

    python benchmarks/overhead.py                       # starts its own processes, on the CPU
    torchrun --nproc-per-node 8 benchmarks/overhead.py  # on these ranks, on their GPUs

For each strategy: the collectives and ATen operators of one step with their bytes, which must be the
same, and the ratio of step times in interleaved pairs with its 95 % interval.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]

import train_gpt  # noqa: E402  (found through the path set above)
from handwritten import ddp, fsdp2, hsdp  # noqa: E402
from handwritten.step import MICRO_BATCH  # noqa: E402
from handwritten.step import forward_backward as step_by_hand  # noqa: E402

import parastrat  # noqa: E402
from parastrat.plan import Backend, Mesh, Plan, Shard  # noqa: E402
from parastrat.workload import Precision  # noqa: E402

STRATEGIES = {"ddp": ddp, "fsdp2": fsdp2, "hsdp": hsdp}
ACCUMULATION = 2
#: two-sided 95 % of the normal distribution
Z95 = 1.96


@dataclass(frozen=True)
class Pair:
    """One step under the same plan and from the same weights, both ways."""

    wrapped: Callable[[], torch.Tensor]
    by_hand: Callable[[], torch.Tensor]


class Recorded(TorchDispatchMode):
    """The operators that run, each with the bytes of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves([args, kwargs, result]) if isinstance(t, torch.Tensor)]
        self.operators.append((str(func), sum(t.numel() * t.element_size() for t in tensors)))
        return result


def plan_of(strategy: str, world_size: int) -> Plan:
    """Return the plan that the handwritten module of this name carries out."""
    replicas = {"ddp": world_size, "fsdp2": 1, "hsdp": hsdp.REPLICAS}[strategy]
    return Plan(
        mesh=Mesh(dp_replicate=replicas, dp_shard=world_size // replicas),
        micro_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=ACCUMULATION,
        precision=Precision.FP32,
        backend=Backend.NCCL if torch.cuda.is_available() else Backend.GLOO,
        shard=Shard.NONE if strategy == "ddp" else Shard.PARAMETERS,
    )


def pair_of(strategy: str, *, sequence_length: int) -> Pair:
    """Wrap the example's model both ways."""
    torch.manual_seed(0)
    plan = plan_of(strategy, int(os.environ["WORLD_SIZE"]))
    wrapped = parastrat.auto_parallelize(train_gpt.build(), plan=plan)
    device = next(wrapped.parameters()).device
    torch.manual_seed(0)
    module = STRATEGIES[strategy]
    by_hand = module.parallelize(train_gpt.build(), device)
    share = MICRO_BATCH * ACCUMULATION
    drawn = torch.randint(
        256, (share, sequence_length + 1), generator=torch.Generator().manual_seed(dist.get_rank())
    )
    inputs, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3) for model in (wrapped, by_hand)]

    def stepped(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Pair(
        wrapped=lambda: stepped(
            optimizers[0], parastrat.forward_backward(wrapped, inputs, targets, loss_fn=train_gpt.loss_of)
        ),
        by_hand=lambda: stepped(
            optimizers[1], step_by_hand(by_hand, (inputs, targets), train_gpt.loss_of, module.reducing)
        ),
    )


def operators_of(step: Callable[[], torch.Tensor]) -> list[tuple[str, int]]:
    """Return what one step runs."""
    with Recorded() as recorded:
        step()
    return recorded.operators


def is_collective(operator: str) -> bool:
    return operator.startswith(("c10d", "_c10d"))


def time_of(step: Callable[[], torch.Tensor]) -> float:
    """Return the seconds of one step, begun by all ranks together."""
    dist.barrier()
    start = time.perf_counter()
    step().item()
    return time.perf_counter() - start


def ratio_of(pair: Pair, pairs: int) -> tuple[float, float, float]:
    """Return the ratio of step times, wrapped over by hand, and its 95 % interval.

    The mean of log ratios of neighbouring steps, in an order drawn anew, the same on all ranks; the tenth
    at either end, where another process held the machine, is trimmed (interval after Tukey and McLaughlin).
    """
    order = random.Random(0)  # noqa: S311  (no secret)
    logs = []
    for _ in range(pairs):
        first = order.random() < 0.5
        steps = (pair.wrapped, pair.by_hand) if first else (pair.by_hand, pair.wrapped)
        seconds = [time_of(step) for step in steps]
        logs.append(math.log(seconds[0] / seconds[1]) * (1 if first else -1))
    logs.sort()
    cut = pairs // 10
    kept = logs[cut : pairs - cut]
    winsorized = [min(max(value, kept[0]), kept[-1]) for value in logs]
    error = statistics.stdev(winsorized) / (len(kept) / pairs * math.sqrt(pairs))
    mean = statistics.fmean(kept)
    return tuple(math.exp(mean + z * error) for z in (0.0, -Z95, Z95))


def measure(strategies: list[str], pairs: int, sequence_length: int) -> None:
    """Print one row a strategy."""
    for strategy in strategies:
        pair = pair_of(strategy, sequence_length=sequence_length)
        for _ in range(3):  # first steps allocate, and DDP rebuilds its buckets
            pair.wrapped(), pair.by_hand()
        ours, theirs = operators_of(pair.wrapped), operators_of(pair.by_hand)
        ratio, low, high = ratio_of(pair, pairs)
        if dist.get_rank() == 0:
            moved = [bytes_ for operator, bytes_ in ours if is_collective(operator)]
            same = "same" if ours == theirs else "DIFFERENT"
            print(
                f"{strategy:6} {dist.get_world_size():5} {same:9} {len(ours):9} {len(moved):11} "
                f"{sum(moved) / 2**20:8.1f}   {ratio:.3f} ({low:.3f} .. {high:.3f})",
                flush=True,
            )


def run_here(args: argparse.Namespace) -> None:
    """Measure on the ranks that a launcher has started."""
    if os.environ["RANK"] == "0":
        print(
            f"{'plan':6} {'ranks':5} {'operators':9} {'per step':>9} {'collectives':11} {'MiB':>8}   "
            "step time, wrapped / by hand (95 %)"
        )
    measure(args.strategies, args.pairs, args.sequence_length)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["ddp", "fsdp2"])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2, help="processes to start where no launcher has")
    parser.add_argument("--sequence-length", type=int, default=128)
    args = parser.parse_args()
    if "RANK" in os.environ:
        run_here(args)
        return
    from torch.distributed.run import main as torchrun  # noqa: PLC0415  (not on ranks)

    torchrun(["--standalone", "--nproc-per-node", str(args.ranks), *sys.argv])


if __name__ == "__main__":
    main()
