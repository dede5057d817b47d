"""Answers as plain tables, schemas ``parastrat.recommendation/1`` and ``parastrat.estimate/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.emit.plan_file import plan_table
from parastrat.records import plain
from parastrat.report.host_memory import host_memory_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case, Facts
    from parastrat.estimate import Estimate
    from parastrat.finding import Finding
    from parastrat.memory.phases import RankMemory
    from parastrat.memory.rooms import Rooms
    from parastrat.model import ModelSpec
    from parastrat.result import NearestFit, NetworkDoubt, Rung, SearchResult
    from parastrat.timeline import Timeline

RECOMMENDATION = "parastrat.recommendation/1"
ESTIMATE = "parastrat.estimate/1"

_FINDING_KEYS = ("code", "severity", "message", "fix", "url")


def recommendation_json(result: SearchResult) -> dict[str, Any]:
    """Return the answer of ``recommend``; ``plan`` and ``estimate`` are None where nothing fits."""
    return {
        "schema": RECOMMENDATION,
        **_facts_table(result.facts),
        **_judged(result.chosen, result.findings),
        "tolerance": result.tolerance,
        "considered": result.considered,
        "bounded": result.bounded,
        "may_be_a_tie": result.may_be_a_tie,
        "fastest": _outline(result.fastest),
        "forced_strategy": result.forced_strategy,
        "unforced": _outline(result.unforced),
        "rungs": [_rung_table(rung) for rung in result.rungs],
        "front": [_outline(case) for case in result.front],
        "network_doubt": _doubt_table(result.network_doubt),
        "nearby_batch": _outline(result.nearby_batch),
        "chunked_loss": _outline(result.chunked_loss),
        "compiled": _outline(result.compiled),
        "offloaded": _outline(result.offloaded),
        "applied": None if result.applied is None else {"recommended": _outline(result.applied.case)},
        "alternatives": [_outline(case) for case in result.alternatives],
        "rejected": [plain(rejection) for rejection in result.rejected],
        "memory_aside": _outline(result.memory_aside),
        "nearest_fit": [_nearest_table(fit) for fit in result.nearest_fit],
    }


def estimate_json(
    case: Case,
    findings: Sequence[Finding],
    rooms: Rooms | None = None,
    timeline: Timeline | None = None,
) -> dict[str, Any]:
    """Return the answer of ``estimate``, with memory phase by phase, that of hosts and a step as it passes.

    Each where it is given.
    """
    where = {} if rooms is None else _rooms_table(rooms)
    where |= {} if timeline is None else {"timeline": _timeline_table(timeline)}
    return {"schema": ESTIMATE, **_facts_table(case.facts), **_judged(case, findings), **where}


def comparison_json(case: Case, findings: Sequence[Finding], recommended: SearchResult) -> dict[str, Any]:
    """Return the answer of ``why-not``: the asked plan, and the recommendation beside it."""
    return {**estimate_json(case, findings), "recommended": recommendation_json(recommended)}


def estimate_table(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate with its parts, its totals, and the numbers that follow from them."""
    memory, time = estimate.memory, estimate.time
    return {
        "memory": {
            **memory.parts,
            "total": memory.total,
            "capacity": memory.capacity,
            "margin": memory.margin,
        },
        "time": {
            **time.parts,
            "step": time.step,
            "step_low": time.step_low,
            "step_high": time.step_high,
        },
        "tokens_per_s_per_gpu": estimate.tokens_per_s_per_gpu,
        "model_tflops_per_gpu": estimate.model_tflops_per_gpu,
        "mfu": estimate.mfu,
    }


def _doubt_table(doubt: NetworkDoubt | None) -> dict[str, Any] | None:
    if doubt is None:
        return None
    return {
        "kind": doubt.kind.value,
        "bytes_per_s": doubt.bytes_per_s,
        "doubts": [
            {
                "factor": each.factor,
                "flips": each.flips,
                "chosen": _outline(each.chosen),
                "other": _outline(each.other),
            }
            for each in doubt.doubts
        ],
    }


def _judged(case: Case | None, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "plan": None if case is None else plan_table(case.plan),
        "estimate": None if case is None else estimate_table(case.estimate),
        "verdict": "does_not_fit" if case is None else case.estimate.verdict.value,
        "fits": case is not None and case.estimate.fits,
        "findings": [_finding_table(finding) for finding in findings],
    }


def _facts_table(facts: Facts) -> dict[str, Any]:
    return {
        "model": _model_table(facts.model),
        "hardware": plain(facts.hardware),
        "workload": plain(facts.workload),
        "stack": facts.stack.name,
    }


def _model_table(model: ModelSpec) -> dict[str, Any]:
    """Return what tells a model from another; its blocks are not for reading."""
    return {
        "ref": model.ref,
        "name": model.name,
        "family": model.family.value,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "layers": model.layers,
        "sequence_length": model.sequence_length,
        "caveats": list(model.caveats),
        "source": model.source,
    }


def _finding_table(finding: Finding) -> dict[str, Any]:
    table = plain(finding)
    return {key: table[key] for key in _FINDING_KEYS}


def _timeline_table(timeline: Timeline) -> dict[str, Any]:
    return {
        "seconds": timeline.seconds,
        "exposed": timeline.exposed,
        "collectives": timeline.collectives,
        "micro_batches_shown": timeline.micro_batches,
        "lanes": {lane.name: lane.busy / timeline.shown for lane in timeline.lanes},
    }


def _rooms_table(rooms: Rooms) -> dict[str, Any]:
    return {
        "memory_phases": [_rank_table(rank) for rank in rooms.ranks],
        "host_memory": host_memory_table(rooms.host),
    }


def _rank_table(rank: RankMemory) -> dict[str, Any]:
    """Return a pipeline rank's phases in bytes; one of them is its peak."""
    peak = rank.peak
    return {
        "rank": rank.rank,
        "blocks": rank.blocks,
        "micro_batches_in_flight": rank.in_flight,
        "kept_per_micro_batch": rank.kept,
        "phases": [
            {
                "stage": phase.stage.value,
                "block": phase.block,
                "repeat": phase.repeat,
                **phase.parts,
                "gathered": phase.gathered,
                "running": phase.running,
                "total": phase.total,
                "peak": phase is peak,
            }
            for phase in rank.phases
        ],
    }


def _outline(case: Case | None) -> dict[str, Any] | None:
    """Return a plan with its estimate, on the same facts as the answer."""
    if case is None:
        return None
    return {"plan": plan_table(case.plan), "estimate": estimate_table(case.estimate)}


def _rung_table(rung: Rung) -> dict[str, Any]:
    return {
        "strategy": rung.strategy,
        "rung": rung.rung,
        "status": rung.status.value,
        "reason": rung.reason,
        **(_outline(rung.case) or {"plan": None, "estimate": None}),
    }


def _nearest_table(fit: NearestFit) -> dict[str, Any]:
    speed = {"tokens_per_s": fit.speed, "tokens_per_s_per_gpu": fit.speed_each}
    return {"changes": list(fit.changes), "speed": speed, **(_outline(fit.case) or {})}
