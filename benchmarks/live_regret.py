"""What the recommendation loses on this machine: every plan of small models measured beside its prediction.

Usage: python benchmarks/live_regret.py [--ranks N] [--models NAME...] [--rounds N] [--on FILE]

Calibrates this host's processors (or takes the hardware file of an earlier run), plans six models on so
many processes, and runs every plan that no rule forbids and that fits: steps in rounds, each plan once a
round, so that whatever else the machine does meets all alike. New processes take so many plans at a time
(each holds its own model and process groups), the recommended one always among them: a plan's time is that
one's, times the median of their ratios round by round. Printed for each model: the plans that ran,
those that auto_parallelize refused, the plan recommended and the fastest by measurement, by how much the
former is slower, and Kendall's tau between predictions and measurements.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch.nn import functional

import parastrat
from parastrat.assess import assess_all
from parastrat.case import Case
from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.comparison import Rival, ranking_of
from parastrat.errors import ParastratError
from parastrat.launch import ON_PROCESSORS
from parastrat.plan import Plan, Recompute
from parastrat.search import Constraints, find_plan
from parastrat.search.rows import plan_at
from parastrat.search.shortlist import may_run
from parastrat.search.space import every_plan

SEQUENCE, BATCH, VOCABULARY = 128, 8, 4096
_ENDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 256,
    **_ENDS,
}
_GATED = {"intermediate_size": 704}
#: wide and shallow, narrow and deep, with a small vocabulary and a large one: what moves the optimum
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {**_COMMON, **_GATED, "num_key_value_heads": 4}),
    "qwen3-deep": (
        "qwen3",
        {
            **_COMMON,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_hidden_layers": 12,
            "num_key_value_heads": 4,
            "head_dim": 16,
        },
    ),
    "gpt2": (
        "gpt2",
        {
            "vocab_size": VOCABULARY,
            "n_embd": 256,
            "n_layer": 4,
            "n_head": 8,
            "n_positions": 256,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
            **_ENDS,
        },
    ),
    "gpt-neox-wide": (
        "gpt_neox",
        {**_COMMON, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2},
    ),
    "phi3": ("phi3", {**_COMMON, **_GATED, "num_key_value_heads": 8}),
    "llama-vocabulary": (
        "llama",
        {**_COMMON, **_GATED, "num_key_value_heads": 4, "num_hidden_layers": 2, "vocab_size": 32768},
    ),
}
#: steps of each plan that are not timed
_WARM_UP = 2
#: plans that processes hold at once, beside the one that all are compared with: Gloo's groups have threads
_AT_ONCE = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model on this machine, with every plan that may run."""

    cases: tuple[Case, ...]
    #: the place of the recommended plan among them
    chosen: int


def config_of(name: str) -> Any:
    """Return the configuration of one of the models."""
    kind, fields = MODELS[name]
    return transformers.AutoConfig.for_model(kind, **fields)


def job_of(folder: Path, on: str) -> Job:
    """Return the plans of the model whose configuration is in a folder, without recomputation.

    Memory is ample here, so that to compute again can only take longer.
    """
    job = resolved(JobFlags(model=str(folder), on=on, seq_len=SEQUENCE, global_batch=BATCH))
    # cp divides what auto_parallelize does not
    fixed = Constraints(recompute=Recompute.NONE, cp=1)
    columns = every_plan(job.facts, fixed)
    plans = tuple(plan_at(columns, row) for row in range(len(columns.pp)))
    chosen = find_plan(job.facts, fixed).chosen
    if chosen is None:
        raise ValueError(f"nothing fits for {folder.name}")
    cases = [case for case in assess_all(job.facts, plans) if may_run(case)]
    if chosen.plan not in [case.plan for case in cases]:
        cases.append(chosen)
    return Job(cases=tuple(cases), chosen=[case.plan for case in cases].index(chosen.plan))


def loss_of(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.logits.flatten(0, 1), targets.flatten())


def stepping(config: Any, plan: Plan) -> Callable[[], None]:
    """Return one training step of a model under a plan, on this rank."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(
        transformers.AutoModelForCausalLM.from_config(config),
        plan=plan,
        sample_inputs=torch.zeros(plan.micro_batch_size, SEQUENCE, dtype=torch.int64),
        loss_fn=loss_of,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    samples = plan.micro_batch_size * plan.gradient_accumulation_steps
    tokens = torch.randint(config.vocab_size, (samples, SEQUENCE + 1))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> None:
        parastrat.forward_backward(model, inputs, targets, loss_fn=loss_of)
        optimizer.step()
        optimizer.zero_grad()

    return step


def seconds_of(step: Callable[[], None]) -> float:
    """Return what a step takes, begun and ended by all ranks together."""
    dist.barrier()
    start = time.perf_counter()
    step()
    dist.barrier()
    return time.perf_counter() - start


def measured(config: Any, plans: Sequence[Plan], rounds: int) -> list[tuple[list[float], str]]:
    """Return the seconds of a step of every plan on these ranks, by round, or why there are none."""
    steps: dict[int, Callable[[], None]] = {}
    reasons: dict[int, str] = {}
    for place, plan in enumerate(plans):
        try:
            steps[place] = stepping(config, plan)
        except ParastratError as error:
            reasons[place] = error.message
            continue
        for _ in range(_WARM_UP):
            steps[place]()
    times: dict[int, list[float]] = {place: [] for place in steps}
    for _ in range(rounds):
        for place, step in steps.items():
            times[place].append(seconds_of(step))
    return [(times.get(place, []), reasons.get(place, "")) for place in range(len(plans))]


def of_ranks(job: Job, *, alone: bool) -> list[Plan]:
    """Return the plans of all ranks, or of one: one process with all cores is no plan of the others'.

    The recommended one comes first, if it is among them.
    """
    recommended = job.cases[job.chosen].plan
    plans = [case.plan for case in job.cases if (case.plan.mesh.world_size == 1) is alone]
    return sorted(plans, key=lambda plan: plan != recommended)


def heats_of(plans: Sequence[Plan]) -> list[list[Plan]]:
    """Return plans by the processes that measure them, each time behind the first."""
    first, others = plans[0], plans[1:]
    return [[first, *others[begin : begin + _AT_ONCE]] for begin in range(0, max(len(others), 1), _AT_ONCE)]


def run_here(args: argparse.Namespace) -> None:
    """Measure the plans of one model on the ranks that a launcher has started, and write what they took."""
    dist.init_process_group("gloo")
    folder = Path(args.folder)
    alone = dist.get_world_size() == 1
    heats = heats_of(of_ranks(job_of(folder, args.on), alone=alone))
    found = measured(config_of(args.models[0]), heats[args.heat], args.rounds)
    if dist.get_rank() == 0:
        Path(args.result).write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def launched(
    name: str, folder: Path, on: str, ranks: int, rounds: int, heat: int
) -> list[tuple[list[float], str]]:
    """Return what ``run_here`` measures on so many new processes, which share the host's cores."""
    result = folder / f"result-{ranks}.json"
    threads = max(1, (os.cpu_count() or 1) // ranks)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
    ]
    command += [__file__, "--models", name, "--folder", str(folder), "--on", on]
    command += ["--rounds", str(rounds), "--result", str(result), "--heat", str(heat)]
    # the command is this file
    own = {"OMP_NUM_THREADS": str(threads), **ON_PROCESSORS}
    subprocess.run(command, check=True, env={**os.environ, **own})
    return [(seconds, reason) for seconds, reason in json.loads(result.read_text(encoding="utf-8"))]


def beside_the_first(
    heats: Sequence[Sequence[tuple[list[float], str]]],
) -> list[tuple[float | None, str]]:
    """Return the seconds of each plan, the first once: that one's, times the median of their ratios."""
    first = [seconds for heat in heats for seconds in heat[0][0]]
    if not first:
        raise ValueError(f"the plan that others are compared with did not run: {heats[0][0][1]}")
    usual = statistics.median(first)
    found: list[tuple[float | None, str]] = [(usual, "")]
    for (beside, _), *others in heats:
        for seconds, reason in others:
            ratios = [own / other for own, other in zip(seconds, beside, strict=bool(seconds))]
            found.append((usual * statistics.median(ratios) if ratios else None, reason))
    return found


def told(name: str, job: Job, found: Sequence[tuple[float | None, str]]) -> tuple[float, float]:
    """Print one model's plans; return the regret of the recommended plan, and Kendall's tau."""
    ran = [(case, spent) for case, (spent, _) in zip(job.cases, found, strict=True) if spent is not None]
    refused = [reason for spent, reason in found if spent is None]
    for case, spent in sorted(ran, key=lambda each: each[1]):
        plan = case.plan
        mark = " recommended" if case is job.cases[job.chosen] else ""
        schedule = f" {plan.pp_schedule.value}" if plan.pp_schedule else ""
        reshard = " reshard" if plan.reshard_after_forward else ""
        print(
            f"  {plan.strategy:9} micro-batch {plan.micro_batch_size}{schedule}{reshard}: measured "
            f"{spent:.3f} s, predicted {case.estimate.time.step:.3f} s{mark}"
        )
    best = min(spent for _, spent in ran)
    own = found[job.chosen][0]
    rivals = [
        Rival(predicted=case.estimate.time.step, measured=spent, rung=case.plan.rung) for case, spent in ran
    ]
    ranking = ranking_of([rivals])
    if own is None or ranking is None:
        raise ValueError(f"the plan recommended for {name} did not run: {found[job.chosen][1]}")
    print(
        f"{name}: {len(ran)} plans ran, {len(refused)} were refused; the recommended one is "
        f"{100 * (own / best - 1):.1f} % slower than the fastest, Kendall's tau {ranking.tau:.2f}"
    )
    for reason in sorted(set(refused)):
        print(f"  refused: {refused.count(reason)}, {reason}")
    return own / best - 1, ranking.tau


def compare(args: argparse.Namespace) -> None:
    """Calibrate, measure all models, and print what was lost."""
    with tempfile.TemporaryDirectory() as scratch:
        on = args.on or str(Path(scratch) / "here.toml")
        if not args.on:
            options = ["--on", "cpu", "--ranks-per-node", str(args.ranks), "-o", on]
            subprocess.run([sys.executable, "-m", "parastrat", "calibrate", *options], check=True)
        losses, taus = [], []
        for name in args.models:
            folder = Path(scratch) / name
            config_of(name).save_pretrained(folder)
            job = job_of(folder, f"{on}:1")
            spent: dict[Plan, tuple[float | None, str]] = {}
            for alone in sorted({case.plan.mesh.world_size == 1 for case in job.cases}):
                plans, ranks = of_ranks(job, alone=alone), 1 if alone else args.ranks
                heats = [
                    launched(name, folder, f"{on}:1", ranks, args.rounds, heat)
                    for heat in range(len(heats_of(plans)))
                ]
                spent |= dict(zip(plans, beside_the_first(heats), strict=True))
            found = [spent[case.plan] for case in job.cases]
            lost, tau = told(name, job, found)
            losses.append(lost)
            taus.append(tau)
        print(
            f"{len(losses)} models on {args.ranks} processes: recommended plans are "
            f"{100 * statistics.fmean(losses):.1f} % slower than the fastest (mean; worst "
            f"{100 * max(losses):.1f} %), Kendall's tau {statistics.fmean(taus):.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--on", help="a hardware file of parastrat calibrate")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    parser.add_argument("--result", help=argparse.SUPPRESS)
    parser.add_argument("--heat", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    (run_here if "RANK" in os.environ else compare)(args)


if __name__ == "__main__":
    main()
