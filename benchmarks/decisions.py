"""Recommended strategies beside those of published recipes, with the numbers of each disagreement.

Usage: python benchmarks/decisions.py [--write]
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parastrat.assess import assess
from parastrat.case import Case, Facts
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.result import SearchResult
from parastrat.search import Constraints, find_plan
from parastrat.sources import load_source
from parastrat.stack import Crossing
from parastrat.units import GIB
from parastrat.workload import Optimizer, Precision, Workload

ROOT = Path(__file__).resolve().parents[1]
DECISIONS = ROOT / "tests" / "golden" / "decisions.toml"
PAGE = ROOT / "docs" / "decisions.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One published choice and what we say."""

    entry: dict[str, Any]
    result: SearchResult
    #: the published mesh with its best micro-batch and recompute; None where no micro-batch divides
    published: Case | None

    @property
    def recommended(self) -> str:
        return self.result.chosen.plan.strategy if self.result.chosen else "nothing fits"

    @property
    def agrees(self) -> bool:
        return self.recommended in self.entry["strategies"]


def facts_of(entry: dict[str, Any]) -> Facts:
    """Return the job of an entry."""
    source = load_source(entry["model"])
    assert source is not None
    precision, stack = Precision(entry["precision"]), load_stack(entry["stack"])
    if "crossing" in entry:
        stack = replace(stack, crossing=Crossing(entry["crossing"]))
    length = entry.get("sequence_length")
    convolutional = source.family.value == "convolutional"
    return Facts(
        model=source.at(length, precision, stack.kernels),
        hardware=load_hardware(entry["on"]),
        workload=Workload(
            global_batch_size=entry["global_batch"],
            sequence_length=length,
            optimizer=Optimizer.SGD_MOMENTUM if convolutional else Optimizer.ADAMW,
            precision=precision,
        ),
        stack=stack,
    )


def published_case(facts: Facts, entry: dict[str, Any]) -> Case | None:
    """Return the published mesh with the fastest micro-batch, recompute and interleaving that fit.

    Where none fits, with the fastest of all. Recompute is the source's own where it states it.
    """
    mesh = Mesh(**entry["mesh"])
    if facts.workload.global_batch_size % mesh.dp:
        return None
    share = facts.workload.global_batch_size // mesh.dp
    stated = entry.get("recompute")
    policies = (Recompute(stated),) if stated else (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    cases = [
        assess(facts, published_plan(facts, entry, (size, share // size, chunks), recompute))
        for size in (1, 2, 4, 8, 16, 32, 64)
        if share % size == 0 and (mesh.pp == 1 or share // size >= mesh.pp)
        for recompute in policies
        for chunks in _interleavings(facts, entry, share // size)
    ]
    return min(cases, key=lambda case: (not case.estimate.fits, case.estimate.time.step), default=None)


def _interleavings(facts: Facts, entry: dict[str, Any], micro_batches: int) -> list[int]:
    """Return the virtual stages a rank may have: as stated, else those that the layers suffice for."""
    if stated := entry.get("virtual_stages"):
        return [stated]
    pp = Mesh(**entry["mesh"]).pp
    able = pp > 1 and micro_batches % pp == 0
    return [1, *(chunks for chunks in (2, 4, 8) if able and facts.model.layers >= chunks * pp)]


def published_plan(
    facts: Facts, entry: dict[str, Any], cuts: tuple[int, int, int], recompute: Recompute
) -> Plan:
    """Return the published mesh as a plan; ``cuts`` are micro-batch, accumulation and virtual stages."""
    mesh = Mesh(**entry["mesh"])
    schedule = PipelineSchedule.ONE_F_ONE_B if cuts[2] == 1 else PipelineSchedule.INTERLEAVED
    return Plan(
        mesh=mesh,
        micro_batch_size=cuts[0],
        gradient_accumulation_steps=cuts[1],
        virtual_stages=cuts[2],
        precision=facts.workload.precision,
        backend=Backend.NCCL,
        shard=Shard(entry["shard"]),
        reshard_after_forward=mesh.pp == 1,
        sequence_parallel=mesh.tp > 1,
        loss_parallel=mesh.tp > 1,
        recompute=recompute,
        pp_schedule=schedule if mesh.pp > 1 else None,
    )


def decide(entry: dict[str, Any]) -> Decision:
    """Return one entry's decision."""
    facts = facts_of(entry)
    return Decision(
        entry=entry,
        result=find_plan(facts, Constraints()),
        published=published_case(facts, entry),
    )


def decisions() -> list[dict[str, Any]]:
    """Return the entries of the golden file."""
    entries: list[dict[str, Any]] = tomllib.loads(DECISIONS.read_text())["decision"]
    return entries


def summary(case: Case | None) -> str:
    """Return a plan in one cell: strategy, mesh, step time, memory."""
    if case is None:
        return "-"
    plan, memory = case.plan, case.estimate.memory
    return (
        f"{plan.strategy}: {plan.mesh}, micro-batch {plan.micro_batch_size}, recompute {plan.recompute}; "
        f"{case.estimate.time.step:.2f} s, {memory.total / GIB:.0f}/{memory.capacity / GIB:.0f} GiB"
    )


def waits(case: Case | None) -> str:
    """Return the parts of a step that are more than 3 % of it."""
    if case is None:
        return "-"
    time = case.estimate.time
    return ", ".join(
        f"{name} {seconds:.2f}" for name, seconds in time.parts.items() if seconds > 0.03 * time.step
    )


def page(made: list[Decision]) -> str:
    """Return docs/decisions.md."""
    agreed = sum(decision.agrees for decision in made)
    refuted = [d.entry["id"] for d in made if d.recommended in d.entry["refuted"]] or "none"
    lines = [
        "# Recommended and published strategies",
        "",
        "Made by `python benchmarks/decisions.py --write`. The published mesh is estimated with the",
        "fastest micro-batch, recompute and interleaving that fit; all seconds are predictions.",
        "",
        f"**{agreed} of {len(made)} agree.** Recommended although a source refutes it: {refuted}.",
        "",
    ]
    for decision in sorted(made, key=lambda each: each.agrees):
        entry = decision.entry
        verdict = "agrees" if decision.agrees else "differs"
        published = f"{entry['published']}, {entry['source']}"
        lines += [
            f"## {entry['id']}: {verdict}",
            "",
            f"- {entry['model']} on {entry['on']}, batch {entry['global_batch']}: {published}",
            f"- ours: {summary(decision.result.chosen)} ({waits(decision.result.chosen)})",
            f"- published: {summary(decision.published)} ({waits(decision.published)})",
        ]
        lines += [f"- why: {entry['argument']}"] if not decision.agrees else []
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Print the page, or write it with ``--write``."""
    text = page([decide(entry) for entry in decisions()])
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
