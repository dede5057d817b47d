"""Plan files back to cases and facts, for commands that start from one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parastrat.errors import PlanFileError, UsageError

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.hardware import Hardware
    from parastrat.parse import Parsed
    from parastrat.plan import Plan

_PARTS = ("model", "hardware", "workload", "launch", "estimate")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSource:
    """A plan file, and what the flags say in its place."""

    path: Path
    parsed: Parsed
    #: MODEL and HARDWARE; None: as the file says
    model: str | None = None
    on: str | None = None

    @property
    def plan(self) -> Plan:
        """The file's plan.

        Raises:
            PlanFileError: it has none.
            UsageError: it has a number that is too large to count.
        """
        from parastrat.tables import check_counts, check_samples

        if self.parsed.plan is None:
            raise PlanFileError(f"{self.path} has no plan", hint="add the table [plan]")
        check_counts(self.parsed.plan)
        if self.parsed.workload is not None:
            check_samples(self.parsed.workload)
        return self.parsed.plan

    @property
    def model_ref(self) -> str | None:
        """MODEL as it can be loaded from the working directory; None when nobody says it."""
        from parastrat.parse import resolved_ref

        if self.model is not None or self.parsed.model is None:
            return self.model
        return resolved_ref(self.parsed.model.ref, self.path)


def planned_case(source: PlanSource, *, whole_model: bool = False) -> Case:
    """Return a plan file as a case: as it was written, or estimated anew where flags say more.

    Args:
        source: the file and the flags.
        whole_model: load the model, of which the file has but a fingerprint.

    Raises:
        UsageError: model or hardware is said neither by the file nor by a flag.
    """
    from parastrat.assess import assess

    parsed = source.parsed
    is_complete = all(getattr(parsed, part) is not None for part in _PARTS)
    if is_complete and source.model is None and source.on is None:
        case = _as_written(source)
        return replace(case, model=facts_for(source, case.hardware).model) if whole_model else case
    hardware = _hardware(source)
    flags = [("--model", source.model_ref), ("--on", hardware)]
    missing = [flag for flag, value in flags if value is None]
    if hardware is None or missing:
        raise UsageError(
            f"{source.path} leaves out for which model or on which hardware its plan is",
            hint=f"add {' and '.join(missing)}",
        )
    return assess(facts_for(source, hardware), source.plan)


def facts_for(source: PlanSource, hardware: Hardware) -> Facts:
    """Return a plan file's model and workload on some hardware.

    Raises:
        UsageError: the model is said neither by the file nor by a flag.
    """
    from parastrat.case import Facts
    from parastrat.cli.facts import default_sequence_length, source_of
    from parastrat.profiles import load_stack
    from parastrat.sources.training import default_optimizer, trained_model
    from parastrat.workload import Workload

    if source.model_ref is None:
        raise UsageError(
            f"{source.path} does not say for which model it was made",
            hint="make a whole plan file with: parastrat recommend MODEL -o plan.toml",
        )
    plan, stack = source.plan, load_stack(source.parsed.stack or "torch")
    model = source_of(source.model_ref)
    workload = source.parsed.workload or Workload(
        global_batch_size=plan.global_batch_size,
        sequence_length=default_sequence_length(model),
        optimizer=default_optimizer(model),
        precision=plan.precision,
        assumed=("sequence_length", "optimizer"),
    )
    spec = trained_model(model, workload, stack.kernels)
    return Facts(model=spec, hardware=hardware, workload=workload, stack=stack)


def _hardware(source: PlanSource) -> Hardware | None:
    from parastrat.cli.facts import hardware_of

    return source.parsed.hardware if source.on is None else hardware_of(source.on, None)


def _as_written(source: PlanSource) -> Case:
    """Return the file's own facts; of its model only the fingerprint is known."""
    from parastrat.case import Case
    from parastrat.parse import FingerprintedModel
    from parastrat.profiles import load_stack

    parsed = source.parsed
    known: dict[str, Any] = {part: getattr(parsed, part) for part in _PARTS}
    known["model"] = FingerprintedModel(known["model"])
    return Case(plan=source.plan, stack=load_stack(parsed.stack or "torch"), **known)
