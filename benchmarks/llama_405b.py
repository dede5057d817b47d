"""Llama 3.1 405B on 8,192 and 16,384 H100: what is recommended, and the published plan beside it.

Published: arXiv:2407.21783, table 4: tp 8, cp 1, pp 16, dp 64 and 128, sequence 8,192, 16M tokens a batch;
430 and 400 TFLOP/s a GPU. Their step times follow from 6 N + 12 L h s FLOPs a token, half of the attention.
Beside them the fastest that fit with the cp of other published runs of this length on H100 (2), and of
schedules that split no backward, whose time no published run tells.

Usage: python benchmarks/llama_405b.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from decisions import Decision, decide, decisions, summary, waits

from parastrat.case import Case
from parastrat.search import Constraints, find_plan

#: bf16 TFLOP/s a GPU, by number of GPUs: arXiv:2407.21783, table 4
PUBLISHED_TFLOPS = {8192: 430, 16384: 400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the source reports of one run."""

    gpus: int
    step_s: float


def measured(decision: Decision) -> Measured:
    """Return the published run's step time from its FLOP/s."""
    facts = decision.result.facts
    gpus = facts.hardware.world_size
    flops = 3 * facts.model.flops * facts.workload.global_batch_size
    return Measured(gpus=gpus, step_s=flops / gpus / (PUBLISHED_TFLOPS[gpus] * 1e12))


def others(decision: Decision) -> Iterator[tuple[str, Case | None]]:
    """Yield the fastest plans that fit where less is searched, with what is left of it."""
    facts = decision.result.facts
    for cp in (1, 2):
        yield f"cp {cp}", find_plan(facts, Constraints(cp=cp), tolerance=0.0).chosen
    whole = replace(facts, stack=replace(facts.stack, splits_backward=False))
    yield "whole backward", find_plan(whole, tolerance=0.0).chosen


def main() -> None:
    """Print both plans for both clusters, and what is fastest among fewer."""
    for entry in decisions():
        if entry["id"] not in ("llama3-405b-8192xh100", "llama3-405b-16384xh100"):
            continue
        decision = decide(entry)
        run = measured(decision)
        assert decision.published is not None
        predicted = decision.published.estimate.time.step
        print(f"{run.gpus:,} GPUs, published: {entry['published']}, {run.step_s:.2f} s from its TFLOP/s")
        print(f"  published plan  {summary(decision.published)}")
        print(f"                  {waits(decision.published)}")
        print(f"                  predicted / reported - 1 = {predicted / run.step_s - 1:+.1%}")
        reported = PUBLISHED_TFLOPS[run.gpus] * 1e12 / decision.result.facts.hardware.device.peak.bf16
        print(f"                  MFU {reported * run.step_s / predicted:.1%}, reported {reported:.1%}")
        print(f"  recommended     {summary(decision.result.chosen)}")
        print(f"                  {waits(decision.result.chosen)}")
        for name, case in others(decision):
            ahead = (
                ""
                if case is None
                else f"; published / this - 1 = {predicted / case.estimate.time.step - 1:+.1%}"
            )
            print(f"  {name:<16}{summary(case)}{ahead}")
        print()


if __name__ == "__main__":
    main()
