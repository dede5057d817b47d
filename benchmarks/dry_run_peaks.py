"""The closed form's peak of a plan beside that of its dry run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dry_run_combinations import Combination
from dry_run_models import cut

from parastrat.assess import assess, columns_of
from parastrat.case import Facts
from parastrat.errors import ParastratError
from parastrat.memory.one_plan import one_plan
from parastrat.plan import Plan
from parastrat.profiles import load_hardware, load_stack
from parastrat.rules import findings_of
from parastrat.runtime.dry_run import ranks_to_run, run_on_fakes
from parastrat.sources.training import trained_model
from parastrat.units import GIB
from parastrat.workload import Optimizer, Workload

if TYPE_CHECKING:
    from parastrat.model import ModelSource

STATE = Path(__file__).with_name("data") / "dry_runs.jsonl"
#: plans that no advice has: heads that tp does not divide stay whole in the runtime, and blocks are made
#: again for each of their weights
REFUSING = ("PS201", "PS202", "PS715")
LENGTH = 4096


class Named(Protocol):
    """A plan of a model."""

    @property
    def key(self) -> str:
        """What names it in a state."""


Of = TypeVar("Of", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared(Generic[Of]):
    """The peaks of a plan of a model."""

    of: Of
    #: bytes; None where the plan is refused
    dry_run: int | None
    estimate: float
    #: why it was refused; empty where it ran
    refused: str = ""

    @property
    def error(self) -> float:
        """The estimate over the dry run, less 1."""
        return self.estimate / self.dry_run - 1 if self.dry_run else 0.0

    def __str__(self) -> str:
        if self.dry_run is None:
            return f"{self.of.key}: refused, {self.refused}"
        return f"{self.of.key}: dry run {self.dry_run / GIB:.2f} GiB, {100 * self.error:+.2f} %"


def compared(each: Combination, known: dict[str, Any] | None = None) -> Compared[Combination]:
    """Return a combination's estimate beside its dry run.

    Args:
        each: the combination.
        known: the state's line of it, whose dry run is not repeated.
    """
    plan, source = each.plan, cut(each.model, each.blocks)
    length = min(LENGTH, source.architecture.positions or LENGTH)
    workload = Workload(
        global_batch_size=plan.global_batch_size,
        sequence_length=length,
        optimizer=Optimizer.ADAMW,
        precision=plan.precision,
        loss_chunks=each.chunks,
    )
    job = job_of(source, workload, "dgx-h100:8")
    case, estimate = assess(job, plan), most_of_tensors(job, plan)
    broken = [each for each in findings_of(case, columns_of(case)) if each.code in REFUSING]
    if broken:
        refused = f"{broken[0].code}, {broken[0].message}"
        return Compared(of=each, dry_run=None, estimate=estimate, refused=refused)
    if known is not None:
        return Compared(of=each, dry_run=known["peak"], estimate=estimate, refused=known["refused"])
    try:
        peak = max(
            run_on_fakes(each.ref, plan, workload, rank).peak for rank in ranks_to_run(job.model, plan)
        )
    except ParastratError as error:
        return Compared(of=each, dry_run=None, estimate=estimate, refused=error.message)
    return Compared(of=each, dry_run=peak, estimate=estimate)


def job_of(source: ModelSource, workload: Workload, on: str) -> Facts:
    """Return the facts of a model's training on some hardware, by torch as it comes."""
    stack = load_stack("torch")
    model = trained_model(source, workload, stack.kernels)
    return Facts(model=model, hardware=load_hardware(on), workload=workload, stack=stack)


def most_of_tensors(job: Facts, plan: Plan) -> float:
    """Return the bytes of tensors at the moment of a step at which the estimate has most of them.

    A plan's own estimate is of the moment at which a device holds most, with what its allocator keeps: that
    may be another, as memory which an allocator keeps for gathered parameters is idle at some moments only.
    """
    moments = (each for rank in one_plan(job, plan).ranks for each in (*rank.moments, *rank.gathering))
    return max(each.total - each.parts["overhead"] for each in moments if each is not None)


def read_state(state: Path = STATE) -> dict[str, dict[str, Any]]:
    """Return a state's lines by their keys."""
    text = state.read_text(encoding="utf-8") if state.exists() else ""
    return {line["key"]: line for line in map(json.loads, text.splitlines())}


def told(
    each: Of,
    compare: Callable[[Of, dict[str, Any] | None], Compared[Of]],
    state: Path,
    lines: dict[str, dict[str, Any]],
    until: str | None,
) -> Compared[Of] | None:
    """Print a comparison, and keep its dry run where the state has it not; None where it is too late."""
    if each.key not in lines and until is not None and time.strftime("%H:%M") >= until:
        return None
    begun = time.monotonic()
    found = compare(each, lines.get(each.key))
    print(found, flush=True)
    if each.key not in lines:
        line = {"key": each.key, "peak": found.dry_run, "refused": found.refused}
        with state.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | {"seconds": round(time.monotonic() - begun, 1)}) + "\n")
    return found


def summary(found: Sequence[Compared[Any]]) -> str:
    """Return what errors come to, in words."""
    errors = [abs(each.error) for each in found]
    near, far = (sum(error <= most for error in errors) for most in (0.03, 0.08))
    return (
        f"{len(errors)} combinations: median {100 * statistics.median(errors):.2f} %, {near} within 3 %, "
        f"{far} within 8 %, worst {100 * max(errors):.2f} %"
    )
