# ruff: noqa: INP001, T201, S311, BLE001 - a script, which reports by printing whatever goes wrong
"""Ask for random jobs with random flags: a plan that obeys them, a reason, or a refusal in one message.

Usage: python scripts/fuzz_recommend.py [JOBS] [FIRST SEED]
"""

from __future__ import annotations

import random
import runpy
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from parastrat.cli.facts import Job, compiled_facts, resolved
from parastrat.cli.flags import FixedFlags, JobFlags, OutputFlags
from parastrat.cli.recommend import checked_constraints
from parastrat.cli.typed import report_context
from parastrat.errors import ParastratError
from parastrat.plan import Recompute
from parastrat.profiles import device_names, model_names, node_names, stack_names
from parastrat.report.json import recommendation_json
from parastrat.report.recommendation import recommendation_text
from parastrat.report.text import Paper
from parastrat.result import SearchResult
from parastrat.search import Constraints, find_plan, memory_front, with_others
from parastrat.workload import Optimizer, Precision

LIMIT_S = 2.0
_FAULTS = runpy.run_path(str(Path(__file__).resolve().parents[1] / "benchmarks" / "sweep.py"))["faults_of"]
_STRATEGIES = ("single", "ddp", "fsdp2", "hsdp", "fsdp2+tp", "hsdp+tp", "fsdp2+pp", "hsdp+tp+pp", "ddp+pp")
_DEGREES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One command line."""

    job: JobFlags
    fixed: FixedFlags
    applied: bool
    front: bool

    def __str__(self) -> str:
        words = [
            f"--{field.name.replace('_', '-')} {getattr(flags, field.name)}"
            for flags in (self.job, self.fixed)
            for field in fields(flags)
            if getattr(flags, field.name) is not None
        ]
        return " ".join(
            [*words, *(["--applied"] if self.applied else []), *(["--front"] if self.front else [])]
        )


def drawn(draw: random.Random) -> Asked:
    """Return a command line; most of its flags are left out."""

    def sometimes(values: list[object] | tuple[object, ...] | type, share: float = 0.25) -> object:
        return draw.choice(list(values)) if draw.random() < share else None

    count = draw.choice((1, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 56, 96, 100, 128, 768, 2000))
    if draw.random() < 0.75:
        on = f"{draw.choice(node_names())}:{count}"
    else:
        on = f"{draw.choice(device_names())}x{draw.choice((1, 2, 3, 4, 6, 8, 16))}:{count}"
    degrees = {name: sometimes((1, 1, 2, 2, 3, 4, 5, 8, 16, 64), 0.08) for name in _DEGREES}
    job = {
        "seq_len": sometimes((1, 7, 128, 500, 1024, 2048, 4096, 8192, 32768, 131072, 1_000_000)),
        "global_batch": sometimes((1, 2, 3, 7, 8, 32, 100, 256, 1000, 1024, 4096, 12_288)),
        "precision": sometimes(Precision),
        "optimizer": sometimes(Optimizer),
    }
    return Asked(
        job=JobFlags(
            model=draw.choice(model_names()),
            on=on,
            stack=str(sometimes(stack_names()) or "torch"),
            **job,  # type: ignore[arg-type]
        ),
        fixed=FixedFlags(
            strategy=sometimes(_STRATEGIES, 0.1),  # type: ignore[arg-type]
            micro_batch=sometimes((1, 2, 3, 4, 8, 16, 64), 0.1),  # type: ignore[arg-type]
            recompute=sometimes(Recompute, 0.15),  # type: ignore[arg-type]
            **degrees,  # type: ignore[arg-type]
        ),
        applied=draw.random() < 0.15,
        front=draw.random() < 0.15,
    )


def answered(asked: Asked) -> tuple[Job, Constraints, SearchResult, float]:
    """Answer as ``recommend`` does, and write both reports; also return what the search took."""
    job = resolved(asked.job)
    fixed = replace(checked_constraints(asked.fixed, job.facts), applied=asked.applied)
    start = time.perf_counter()
    result = find_plan(job.facts, fixed, model_at=job.model_at)
    took = time.perf_counter() - start
    result = with_others(result, fixed, compiled_facts(job))
    if asked.front:
        result = replace(result, front=memory_front(job.facts, fixed))
    recommendation_json(result)
    recommendation_text(result, report_context(job, asked.job, asked.fixed, OutputFlags()), Paper())
    return job, fixed, result, took


def faults_of(job: Job, fixed: Constraints, result: SearchResult) -> Iterator[str]:
    """Name what is wrong with an answer."""
    # with flags there may be nothing to say but what rules do
    yield from (fault for fault in _FAULTS(job, result, fixed) if not fault.startswith("nothing fits"))
    shown = any(rung.case for rung in result.rungs)
    # no rung may have a plan of the strategy that was asked for
    if not (result.chosen or result.nearest_fit or result.rejected or shown or fixed.strategy):
        yield "nothing fits, and nothing is said of why"
    for case in (result.chosen, *result.alternatives) if result.chosen else ():
        plan = case.plan
        held = {
            **{name: getattr(plan.mesh, name) for name in _DEGREES},
            "micro_batch_size": plan.micro_batch_size,
            "recompute": plan.recompute,
        }
        for name, value in held.items():
            if getattr(fixed, name) not in (None, value):
                yield f"{name} is {value}, asked for was {getattr(fixed, name)}"
    if result.chosen and fixed.strategy not in (None, result.chosen.plan.strategy):
        yield f"{result.chosen.plan.strategy}, asked for was {fixed.strategy}"


def main(jobs: int, first: int) -> int:
    """Answer so many drawn jobs; return the number of faults."""
    told, faults, slowest = Counter[str](), 0, (0.0, "")
    for seed in range(first, first + jobs):
        asked = drawn(random.Random(seed))
        try:
            job, fixed, result, took = answered(asked)
        except ParastratError:
            told["refused"] += 1
            continue
        except Exception:
            faults += 1
            print(f"seed {seed}: {asked}\n{traceback.format_exc()}", flush=True)
            continue
        near = "with a nearest fit" if result.nearest_fit else "with reasons alone"
        told["with a plan" if result.chosen else near] += 1
        for fault in faults_of(job, fixed, result):
            faults += 1
            print(f"seed {seed}: {asked}: {fault}", flush=True)
        slowest = max(slowest, (took, str(asked)))
        if took > LIMIT_S:
            faults += 1
            print(f"seed {seed}: {asked}: {took:.1f} s", flush=True)
    counts = ", ".join(f"{many:,} {what}" for what, many in sorted(told.items()))
    print(f"{jobs:,} jobs: {counts}; {faults} faults; slowest search {slowest[0]:.2f} s ({slowest[1]})")
    return faults


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(1 if main(*(numbers or [5_000]), *([0] if len(numbers) < 2 else [])) else 0)
