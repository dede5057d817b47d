"""What ``auto_parallelize`` costs over the same plan written by hand.

    python benchmarks/overhead.py                       # starts its own processes, on the CPU
    torchrun --nproc-per-node 8 benchmarks/overhead.py  # on these ranks, on their GPUs

For each strategy: the collectives of one step with their bytes, which must be the same (under plans of
data parallelism alone all ATen operators are), and the ratio of step times in interleaved pairs with its
95 % interval. The step is the fifth: none of those (1, 2, 4, 8 and so on) in which ranks compare what they
hold.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "examples")]

import train_gpt  # noqa: E402  (found through the path set above)
from handwritten import ddp, decoder, fsdp2, fsdp2_tp, hsdp, pp, tp  # noqa: E402
from handwritten.step import MICRO_BATCH  # noqa: E402

import parastrat  # noqa: E402
from parastrat.plan import Backend, Mesh, Plan, Shard  # noqa: E402
from parastrat.workload import Precision  # noqa: E402

STRATEGIES = {"ddp": ddp, "fsdp2": fsdp2, "hsdp": hsdp, "tp": tp, "pp": pp, "fsdp2+tp": fsdp2_tp}
#: plans that only divide samples and weights: every operator is compared, not collectives alone
OF_DATA = ("ddp", "fsdp2", "hsdp")
#: AdamW's implementations: one parameter after the other, as torch does on CPUs where nothing is asked;
#: lists of them, as it does on GPUs; one kernel for all
ADAMW = {"loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
ACCUMULATION = 2
#: micro-batches of a pipeline, for each of its stages
PIPELINED = 4
#: what collectives are called, by any of torch's names for them
KINDS = {
    "all_?reduce": "all_reduce",
    "_?all_?gather": "all_gather",
    "_?reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
    # of functional collectives: none of them sends anything
    "wait_tensor|_wrap_tensor_autograd": "",
}
#: two-sided 95 % of the normal distribution
Z95 = 1.96


@dataclass(frozen=True)
class Pair:
    """One step under the same plan and from the same weights, both ways."""

    wrapped: Callable[[], torch.Tensor]
    by_hand: Callable[[], torch.Tensor]


class Recorded(TorchDispatchMode):
    """The operators that run, each with the bytes of its tensors; of DTensors, what they are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[tuple[str, int]] = []
        #: each with the bytes of its whole message
        self.collectives: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        # under torch 2.11 those are seen by which DTensors know shapes, once for each
        if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves([args, result])):
            return result
        self.operators.append((str(func), _bytes([args, kwargs, result])))
        if "c10d" in func.namespace and (kind := kind_of(str(func))):
            self.collectives.append((kind, max(map(_bytes, [*args, result]))))
        return result


def _bytes(values: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tree_leaves(values) if isinstance(t, torch.Tensor))


def kind_of(operator: str) -> str:
    """Return what a collective does; nothing for what sends nothing."""
    name = operator.split(".")[1]
    return next(kind for pattern, kind in KINDS.items() if re.match(pattern, name))


def mesh_of(strategy: str, ranks: int) -> Mesh:
    """Return the mesh of the handwritten module of this name."""
    return {
        "ddp": Mesh(dp_replicate=ranks),
        "fsdp2": Mesh(dp_shard=ranks),
        "hsdp": Mesh(dp_replicate=hsdp.REPLICAS, dp_shard=ranks // hsdp.REPLICAS),
        "tp": Mesh(tp=ranks),
        "pp": Mesh(pp=ranks),
        "fsdp2+tp": Mesh(dp_shard=ranks // fsdp2_tp.DEGREE, tp=fsdp2_tp.DEGREE),
    }[strategy]


def plan_of(strategy: str, world_size: int) -> Plan:
    """Return the plan that the handwritten module of this name carries out."""
    mesh = mesh_of(strategy, world_size)
    return Plan(
        mesh=mesh,
        micro_batch_size=MICRO_BATCH,
        gradient_accumulation_steps=ACCUMULATION if mesh.pp == 1 else PIPELINED * mesh.pp,
        precision=Precision.FP32,
        backend=Backend.NCCL if torch.cuda.is_available() else Backend.GLOO,
        shard=Shard.PARAMETERS if mesh.dp_shard > 1 else Shard.NONE,
        sequence_parallel=mesh.tp > 1,
    )


def pair_of(strategy: str, *, sequence_length: int, adamw: str = "loop") -> Pair:
    """Wrap one model both ways: the example's, or the one whose layers can be divided and stacked.

    ``adamw``: its implementation, of ``ADAMW``.
    """
    plan = plan_of(strategy, int(os.environ["WORLD_SIZE"]))
    build, vocabulary = (
        (train_gpt.build, train_gpt.VOCABULARY)
        if strategy in OF_DATA
        else (decoder.Decoder, decoder.VOCABULARY)
    )
    torch.manual_seed(0)
    wrapped = parastrat.auto_parallelize(build(), plan=plan, sample_inputs=_tokens(1, sequence_length))
    device = next(wrapped.parameters()).device
    torch.manual_seed(0)
    module = STRATEGIES[strategy]
    by_hand = module.parallelize(build(), device)
    drawn = torch.randint(
        vocabulary,
        (MICRO_BATCH * plan.gradient_accumulation_steps, sequence_length + 1),
        generator=torch.Generator().manual_seed(dist.get_rank() // plan.mesh.tp % plan.mesh.dp),
    )
    inputs, targets = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=1e-3, **ADAMW[adamw]) for model in (wrapped, by_hand)
    ]

    def stepped(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Pair(
        wrapped=lambda: stepped(
            optimizers[0], parastrat.forward_backward(wrapped, inputs, targets, loss_fn=train_gpt.loss_of)
        ),
        by_hand=lambda: stepped(
            optimizers[1], module.forward_backward(by_hand, (inputs, targets), train_gpt.loss_of)
        ),
    )


def _tokens(samples: int, sequence_length: int) -> torch.Tensor:
    return torch.zeros(samples, sequence_length, dtype=torch.int64)


def recorded(step: Callable[[], torch.Tensor]) -> Recorded:
    """Return what one step runs."""
    with Recorded() as seen:
        step()
    return seen


def same(strategy: str, ours: Recorded, theirs: Recorded) -> bool:
    """Return whether both steps do the same, as far as is asked of the strategy."""
    if strategy in OF_DATA:
        return ours.operators == theirs.operators
    return Counter(ours.collectives) == Counter(theirs.collectives)


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


def measure(strategies: list[str], pairs: int, sequence_length: int, adamw: str) -> None:
    """Print one row a strategy."""
    for strategy in strategies:
        pair = pair_of(strategy, sequence_length=sequence_length, adamw=adamw)
        # first steps allocate, and DDP rebuilds its buckets; in the first, second, fourth and so on ranks
        # compare what they hold, with operators of its own
        for _ in range(4):
            pair.wrapped(), pair.by_hand()
        ours, theirs = recorded(pair.wrapped), recorded(pair.by_hand)
        ratio, low, high = ratio_of(pair, pairs)
        if dist.get_rank() == 0:
            moved = sum(bytes_ for _, bytes_ in ours.collectives)
            compared = "operators" if strategy in OF_DATA else "collectives"
            print(
                f"{strategy:9} {dist.get_world_size():5} {compared:11} "
                f"{'same' if same(strategy, ours, theirs) else 'DIFFERENT':9} {len(ours.operators):9} "
                f"{len(ours.collectives):11} {moved / 2**20:8.1f}   {ratio:.3f} ({low:.3f} .. {high:.3f})",
                flush=True,
            )


def run_here(args: argparse.Namespace) -> None:
    """Measure on the ranks that a launcher has started."""
    if os.environ["RANK"] == "0":
        print(
            f"{'plan':9} ranks {'compared':11} {'':9} operators collectives {'MiB':>8}   "
            "step time, wrapped / by hand (95 %)"
        )
    measure(args.strategies, args.pairs, args.sequence_length, args.adamw)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=["ddp", "fsdp2"])
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2, help="processes to start where no launcher has")
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--adamw", choices=ADAMW, default="loop", help="its implementation, both ways")
    args = parser.parse_args()
    if "RANK" in os.environ:
        run_here(args)
        return
    from torch.distributed.run import main as torchrun  # noqa: PLC0415  (not on ranks)

    torchrun(["--standalone", "--nproc-per-node", str(args.ranks), *sys.argv])


if __name__ == "__main__":
    main()
