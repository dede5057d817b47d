"""Made-up answers, whose numbers no formula moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import case

from parastrat.case import Case
from parastrat.finding import Finding, Severity
from parastrat.memory.host import HostMemory
from parastrat.memory.phases import Phase, RankMemory, Stage
from parastrat.memory.rooms import Rooms
from parastrat.plan import PipelineSchedule, Recompute, Shard
from parastrat.report.commands import Context
from parastrat.result import NearestFit, Rejection, Rung, RungStatus, SearchResult
from parastrat.units import GIB

CONTEXT = Context(
    arguments=("small", "--on", "cluster:2", "--global-batch", "64"), defaults_source="a paper, table 1"
)

OUT_OF_MEMORY = Finding(
    code="PS101",
    severity=Severity.ERROR,
    message="needs 165.4 of 78.0 GiB; the largest part is optimizer with 131.0 GiB",
    fix="shard the parameters over all 16 data-parallel ranks (--strategy fsdp2)",
    url="https://example.org/memory",
)
HEADS = Finding(
    code="PS201",
    severity=Severity.ERROR,
    message="16 heads do not divide over tp=5",
    fix="use a tp that divides 16",
    url="https://example.org/heads",
)
LOGITS = Finding(
    code="PS103",
    severity=Severity.INFO,
    message="the logits take 9.0 GiB",
    fix="split them by vocabulary",
    url="https://example.org/logits",
)


def timed(made: Case, **parts: float) -> Case:
    """Return a case with other parts of its step time, and an interval of 15 % around them."""
    time = replace(made.estimate.time, **parts)
    time = replace(time, step_low=0.85 * time.step, step_high=1.15 * time.step)
    return replace(made, estimate=replace(made.estimate, time=time))


def ddp() -> Case:
    return timed(_case(dp_replicate=16, gradients=131 * GIB), compute=0.9)


def fsdp2() -> Case:
    return timed(_case(dp_shard=16, shard=Shard.PARAMETERS, recompute=Recompute.FULL), compute=1.02)


def wider() -> Case:
    return timed(
        _case(
            dp_shard=32,
            shard=Shard.PARAMETERS,
            gradient_accumulation_steps=2,
            num_nodes=4,
            hardware_name="cluster:4",
        ),
        compute=0.5,
    )


def pipelined() -> Case:
    return timed(
        _case(
            pp=4,
            dp_shard=2,
            tp=2,
            shard=Shard.PARAMETERS,
            sequence_parallel=True,
            loss_parallel=True,
            pp_schedule=PipelineSchedule.INTERLEAVED,
            virtual_stages=2,
            gradient_accumulation_steps=32,
        ),
        pp_bubble=0.13,
        tp_exposed=0.05,
    )


def rooms() -> Rooms:
    """Where ``pipelined`` takes memory, as if."""
    host = HostMemory(
        ranks=8,
        processes=16 * GIB,
        offloaded=64 * GIB,
        rounding=32 * GIB,
        loading=4 * GIB,
        checkpointing=6 * GIB,
        whole_models=200 * GIB,
        staged_checkpoint=90 * GIB,
        capacity=1024 * GIB,
    )
    return Rooms(ranks=(_rank(0, 4.0, 40), _rank(3, 1.0, 30)), host=host)


def _rank(rank: int, in_flight: float, peak: int) -> RankMemory:
    rest = {"parameters": 5, "gradients": 0, "optimizer": 10, "overhead": 2}
    backward = {**rest, "gradients": 5, "activations": peak - 30, "transient": 8}

    def phase(stage: Stage, sizes: dict[str, int], *, block: str = "", repeat: str = "") -> Phase:
        names = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")
        transient = sizes.get("transient", 0) * GIB
        return Phase(
            stage=stage,
            block=block,
            repeat=repeat,
            parts={name: sizes.get(name, 0) * GIB for name in names},
            gathered=transient // 2,
            running=transient // 4,
        )

    return RankMemory(
        rank=rank,
        blocks={"layer": 6},
        in_flight=in_flight,
        kept={"layer": GIB // 3},
        phases=(
            phase(Stage.REST, rest),
            phase(Stage.FORWARD, {**rest, "activations": peak - 30}, block="layer"),
            phase(Stage.BACKWARD, backward, block="layer", repeat="1 of 6"),
            phase(Stage.BACKWARD, {**backward, "activations": 1}, block="layer", repeat="6 of 6"),
            phase(Stage.REDUCTION, {**rest, "gradients": 5}),
            phase(Stage.STEP, {**rest, "gradients": 5, "transient": 5}),
        ),
    )


def five_way() -> Case:
    """A plan that no head count allows."""
    return timed(_case(tp=5, dp_shard=3, shard=Shard.PARAMETERS, devices_per_node=15), tp_exposed=1.5)


def _case(**changes: Any) -> Case:
    return case(
        **{
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 4,
            "devices_per_node": 8,
            "scale_up_devices": 8,
            "num_nodes": 2,
            "hardware_name": "cluster:2",
            "assumed": ("sequence_length", "precision", "optimizer"),
            "caveats": ("dropout masks are left out",),
            **changes,
        }
    )


def taken() -> SearchResult:
    """A recommendation that a higher rung beats by less than the tolerance."""
    return SearchResult(
        facts=fsdp2().facts,
        chosen=fsdp2(),
        rungs=(
            _rung(0, "single", RungStatus.NOT_APPLICABLE, "another plan was asked for"),
            _rung(1, "ddp", RungStatus.DOES_NOT_FIT, "needs 166.0 of 78.0 GiB", ddp()),
            _rung(2, "fsdp2", RungStatus.TAKEN, "3.4% behind the fastest, tolerance 5%", fsdp2()),
            _rung(3, "one of tp, cp, ep", RungStatus.NOT_APPLICABLE, "no such plan over 16 devices"),
            _rung(5, "fsdp2+tp+pp", RungStatus.SLOWER, "3.3% faster, less than the tolerance", pipelined()),
        ),
        alternatives=(pipelined(),),
        rejected=(
            Rejection(
                code="PS201", title="Heads divide over tp", count=1200, example=HEADS.message, fix=HEADS.fix
            ),
        ),
        nearest_fit=(),
        findings=(LOGITS,),
        tolerance=0.05,
        considered=4321,
        fastest=pipelined(),
    )


def nothing() -> SearchResult:
    """An answer of no, with what would fit."""
    return replace(
        taken(),
        chosen=None,
        fastest=None,
        findings=(),
        alternatives=(),
        rungs=(_rung(1, "ddp", RungStatus.DOES_NOT_FIT, "needs 166.0 of 78.0 GiB", ddp()),),
        nearest_fit=(
            NearestFit(changes=("4 nodes instead of 2",), case=wider(), speed=1.76, speed_each=0.88),
            NearestFit(changes=("offload it",), case=fsdp2(), speed=0.85, speed_each=0.85),
        ),
        memory_aside=ddp(),
    )


def forced() -> SearchResult:
    """A strategy that the user insisted on, against the advice."""
    return replace(
        taken(), chosen=pipelined(), forced_strategy="fsdp2+tp+pp", unforced=fsdp2(), alternatives=()
    )


def _rung(rung: int, strategy: str, status: RungStatus, reason: str, made: Case | None = None) -> Rung:
    return Rung(strategy=strategy, rung=rung, status=status, reason=reason, case=made)
