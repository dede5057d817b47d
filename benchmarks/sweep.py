"""A recommendation for every preset on 1, 8 and 128 of every node: nothing may crash or break a rule.

Usage: python benchmarks/sweep.py [JOBS | PART/PARTS]

Prints how many were answered, what each fault was, and how long an answer took, by the clock and of the
processor, which other processes disturb less; on stderr what is told so far, once in a thousand jobs.
``JOBS``: so many drawn at random; ``PART/PARTS``: one of so many equal parts of all, counted from 1;
without it all 29,000, which take an hour to two. For every fifty answers, one whose space is small is
compared with every plan of that space: seconds each, longer than the fifty answers take.
"""

from __future__ import annotations

import math
import random
import runpy
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from parastrat.assess import columns_of
from parastrat.case import Case
from parastrat.cli.facts import Job, resolved
from parastrat.cli.flags import JobFlags
from parastrat.estimate import Verdict
from parastrat.finding import Severity
from parastrat.profiles import model_names, node_names
from parastrat.result import SearchResult
from parastrat.rules import findings_of
from parastrat.search import Constraints, find_plan, recommendation

NODES = (1, 8, 128)
#: for so many answers one is held against every plan of its space
_EVERY = 50
#: after so many it is told how far it is
_TELLS = 1000
#: what an answer may take
_LIMIT_S = 0.05
#: plans that brute force can assess in a few seconds
_SMALL_SPACE = 2500
_BRUTE_FORCE = Path(__file__).resolve().parents[1] / "tests" / "search" / "brute_force.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of one job."""

    model: str
    on: str
    #: by the clock, and of the processor
    seconds: float
    processor_s: float
    result: SearchResult
    #: what is wrong with it; empty
    faults: tuple[str, ...]


def jobs() -> list[tuple[str, str]]:
    """Return every preset with every node and count."""
    return [
        (model, f"{node}:{count}") for model in model_names() for node in node_names() for count in NODES
    ]


def answered(model: str, on: str) -> Answer:
    """Plan one job, and look for faults in the answer."""
    job = resolved(JobFlags(model=model, on=on))
    start, processor_start = time.perf_counter(), time.process_time()
    result = find_plan(job.facts, model_at=job.model_at)
    seconds, processor_s = time.perf_counter() - start, time.process_time() - processor_start
    return Answer(
        model=model,
        on=on,
        seconds=seconds,
        processor_s=processor_s,
        result=result,
        faults=tuple(faults_of(job, result)),
    )


def faults_of(job: Job, result: SearchResult, fixed: Constraints | None = None) -> Iterator[str]:
    """Name what is wrong with an answer, to flags where some were given."""
    if recommendation(job.facts, fixed or Constraints()) != result.chosen:
        yield "the recommendation alone is another plan"
    if result.chosen is None:
        if not result.nearest_fit:
            yield "nothing fits, and nothing is said of what would"
        yield from (f"nearest fit: {fault}" for near in result.nearest_fit for fault in _of_case(near.case))
        return
    alone = result.chosen.plan.mesh.world_size == 1
    if not alone and result.chosen.plan.mesh.world_size != job.facts.hardware.world_size:
        yield f"a plan for {result.chosen.plan.mesh.world_size} devices"
    for case in (result.chosen, *result.alternatives):
        yield from _of_case(case)


def _of_case(case: Case) -> Iterator[str]:
    """Name what is wrong with a plan that was returned."""
    plan, memory, spent = case.plan, case.estimate.memory, case.estimate.time
    for finding in findings_of(case, columns_of(case)):
        if finding.severity is Severity.ERROR:
            yield f"{plan.strategy} breaks {finding.code}: {finding.message}"
    if memory.verdict is Verdict.DOES_NOT_FIT:
        yield f"{plan.strategy} does not fit"
    if sum(memory.parts.values()) != memory.total or min(memory.parts.values()) < 0:
        yield f"memory of {memory.parts} is said to be {memory.total}"
    if not math.isclose(sum(spent.parts.values()), spent.step) or min(spent.parts.values()) < 0:
        yield f"time of {spent.parts} is said to be {spent.step}"
    if not spent.step_low <= spent.step <= spent.step_high:
        yield f"step of {spent.step} s outside of {spent.step_low} to {spent.step_high}"
    if plan.global_batch_size != case.workload.global_batch_size:
        yield f"a global batch of {plan.global_batch_size}, not of {case.workload.global_batch_size}"


def is_small(answer: Answer) -> bool:
    """Return whether every plan of the job's space can be assessed; experts multiply spaces."""
    return answer.result.considered <= _SMALL_SPACE and not answer.result.facts.model.experts


def beaten(answer: Answer) -> list[str]:
    """Return the rungs at which brute force finds another best step than the search."""
    best = runpy.run_path(str(_BRUTE_FORCE))["brute_force"](answer.result.facts)
    found = {
        rung.rung: rung.case.estimate.time.step
        for rung in answer.result.rungs
        if rung.case is not None and rung.case.estimate.verdict is Verdict.FITS and rung.rung > 0
    }
    best.pop(0, None)
    # of plans within 0.5 % the simplest is shown
    return [
        f"rung {rung}: {found.get(rung)} s, brute force {best.get(rung)} s"
        for rung in sorted(best.keys() | found.keys())
        if not (rung in best and rung in found and best[rung] <= found[rung] * (1 + 1e-9))
        or found[rung] > 1.005 * best[rung] * (1 + 1e-9)
    ]


def spread(name: str, answers: list[tuple[float, str]]) -> str:
    """Return how long answers took, in a sentence."""
    times, (longest, job) = sorted(seconds for seconds, _ in answers), max(answers)
    return (
        f"seconds each, {name}: median {statistics.median(times):.3f}, 90th percentile "
        f"{times[len(times) * 9 // 10]:.3f}, longest {longest:.3f} ({job}); "
        f"{sum(seconds <= _LIMIT_S for seconds in times)} of {len(times)} within {_LIMIT_S}"
    )


def chosen_jobs(wanted: str) -> list[tuple[str, str]]:
    """Return so many jobs, or one part of so many of all; all where nothing is wanted.

    Each part has models, nodes and their numbers of all kinds.
    """
    every = jobs()
    part, _, parts = wanted.partition("/")
    if not all(number.isdigit() for number in (part or "0", parts or "1")):
        raise SystemExit(f"{wanted}: not JOBS or PART/PARTS, such as 200 or 6/24")
    if parts:
        drawn = random.Random(0).sample(range(len(every)), len(every))  # noqa: S311 - can be repeated
        # in the order of all, model after model
        return [every[place] for place in sorted(drawn[int(part) - 1 :: int(parts)])]
    if part:
        return random.Random(0).sample(every, int(part))  # noqa: S311 - a draw that can be repeated
    return every


@dataclass(slots=True)
class Tally:
    """What came of the jobs so far; of answers their times alone, which are all that is told of them.

    Thousands of results would slow down whatever collects garbage.
    """

    #: seconds and the job
    clock: list[tuple[float, str]] = field(default_factory=list)
    processor: list[tuple[float, str]] = field(default_factory=list)
    planned: int = 0
    compared: int = 0
    faults: int = 0

    def add(self, answer: Answer, faults: int) -> None:
        """Count an answer, and what was wrong with it."""
        name = f"{answer.model} on {answer.on}"
        self.clock.append((answer.seconds, name))
        self.processor.append((answer.processor_s, name))
        self.planned += answer.result.chosen is not None
        self.faults += faults

    def __str__(self) -> str:
        counts = f"{len(self.clock)} jobs, {self.planned} with a plan"
        faults = f"{self.compared} compared with brute force, {self.faults} faults"
        times = spread("by the clock", self.clock), spread("processor", self.processor)
        return "\n".join((f"{counts}, {faults}", *times))


def main() -> None:
    """Print every fault, then the counts and the times."""
    chosen, tally = chosen_jobs("".join(sys.argv[1:])), Tally()
    for number, (model, on) in enumerate(chosen):
        if number and number % _TELLS == 0:
            print(f"of {len(chosen)}: {tally}", file=sys.stderr, flush=True)
        answer = answered(model, on)
        faults = list(answer.faults)
        if tally.compared * _EVERY <= number and is_small(answer):
            tally.compared += 1
            faults += beaten(answer)
        for fault in faults:
            print(f"{model} on {on}: {fault}", flush=True)
        tally.add(answer, len(faults))
    print(tally)


if __name__ == "__main__":
    main()
