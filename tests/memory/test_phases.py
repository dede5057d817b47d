"""Memory by phase: its peak is the estimate, and what lies between is less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory.test_peaks import facts, plan
from parastrat.assess import assess, assess_all
from parastrat.case import Facts
from parastrat.memory.phases import Phase, RankMemory, Stage, memory_by_phase
from parastrat.plan import Mesh, Offload, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware
from parastrat.search import Constraints
from parastrat.search.rows import plan_at
from parastrat.search.space import every_plan


def drawn(job: Facts, many: int) -> list[Plan]:
    space = every_plan(job, Constraints())
    return [plan_at(space, row) for row in range(0, len(space.pp), len(space.pp) // many)]


@pytest.mark.parametrize(
    ("model", "on"),
    [("llama-3.1-70b", "dgx-h100:4"), ("mixtral-8x7b", "dgx-h100:2"), ("t5-3b", "p4d.24xlarge:2")],
)
def test_the_largest_phase_is_the_estimate(model: str, on: str) -> None:
    job = facts(model, on=on)
    plans = drawn(job, 40)
    plans += [replace(plans[0], offload=Offload.OPTIMIZER), replace(plans[1], offload=Offload.PARAMETERS)]
    assert len({each.mesh.pp for each in plans}) > 2
    for case in assess_all(job, plans):
        ranks = memory_by_phase(job, case.plan)
        fullest = max(ranks, key=lambda rank: rank.peak.total)
        assert fullest.peak.total == case.estimate.memory.total
        assert fullest.peak.parts == case.estimate.memory.parts
        # also of the phases that are put together here
        for rank in ranks:
            for phase in rank.phases:
                assert min(phase.parts.values()) >= 0
                assert phase.gathered + phase.running <= phase.parts["transient"] + 2


def test_a_process_on_cpu_has_no_pool_to_keep_gradients_in() -> None:
    job = replace(facts("gpt2"), hardware=load_hardware("cpu:4"))
    chosen = plan(mesh=Mesh(dp_shard=4), gradient_accumulation_steps=2)
    (rank,) = memory_by_phase(job, chosen)
    assert rank.peak.total == assess(job, chosen).estimate.memory.total
    rest = rank.phases[0]
    assert (rest.stage, rest.parts["gradients"], rest.parts["overhead"]) == (Stage.REST, 0, 0)


def only(**changes: Any) -> RankMemory:
    (rank,) = memory_by_phase(facts(), plan(**changes))
    return rank


def phase_of(rank: RankMemory, stage: Stage, block: str, repeat: str = "") -> Phase:
    (found,) = [
        phase
        for phase in rank.phases
        if (phase.stage, phase.block) == (stage, block) and phase.repeat.startswith(repeat)
    ]
    return found


def test_activations_grow_forward_and_shrink_backward() -> None:
    rank = only()
    layers, head = (phase_of(rank, Stage.FORWARD, block) for block in ("layer", "head"))
    assert layers.parts["activations"] == pytest.approx(32 * rank.kept["layer"], rel=1e-3)
    assert head.parts["activations"] == layers.parts["activations"] + rank.kept["head"]
    assert rank.peak.stage is Stage.BACKWARD
    repeats = [phase for phase in rank.phases if phase.stage is Stage.BACKWARD and phase.block == "layer"]
    assert [phase.repeat for phase in repeats] == ["1 of 32", "2 of 32", "32 of 32"]
    first, second, last = (phase.parts["activations"] for phase in repeats)
    assert first - second == pytest.approx(rank.kept["layer"], abs=2)
    assert last == pytest.approx(rank.kept["layer"] + rank.kept["embedding"], abs=2)


def test_units_that_stay_gathered_are_freed_one_by_one() -> None:
    kept, freed = (only(reshard_after_forward=reshard) for reshard in (False, True))
    last = [phase_of(rank, Stage.BACKWARD, "layer", "32").gathered for rank in (kept, freed)]
    second = [phase_of(rank, Stage.BACKWARD, "layer", "2").gathered for rank in (kept, freed)]
    (layer,) = (block for block in facts().model.blocks if block.name == "layer")
    unit = sum(group.count for group in layer.parameters)
    assert second[0] - last[0] == pytest.approx(30 * 2 * unit, rel=1e-6)
    assert second[1] == last[1]
    forward = [phase_of(rank, Stage.FORWARD, "head").gathered for rank in (kept, freed)]
    assert forward[0] > 2 * forward[1]


def test_every_kind_of_pipeline_rank_has_its_own_step() -> None:
    ranks = memory_by_phase(
        facts("llama-3.1-70b", on="dgx-h100:64"),
        plan(
            mesh=Mesh(pp=4, dp_shard=16, tp=8),
            gradient_accumulation_steps=8,
            reshard_after_forward=False,
            recompute=Recompute.FULL,
            pp_schedule=PipelineSchedule.ONE_F_ONE_B,
        ),
    )
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3]
    assert [rank.in_flight for rank in ranks] == [4, 3, 2, 1]
    assert sum(rank.blocks["layer"] for rank in ranks) == 80
    assert ["head" in rank.blocks for rank in ranks] == [False, False, False, True]
    # a pipeline reduces once a step: until then all gradients are whole
    reduction = next(phase for phase in ranks[1].phases if phase.stage is Stage.REDUCTION)
    assert reduction.parts["activations"] == 0
    assert reduction.gathered > 10 * ranks[1].phases[0].parts["gradients"]
    assert ranks[1].phases[-1].stage is Stage.STEP


def test_ddp_holds_gradients_all_the_time_and_keeps_casts() -> None:
    rank = only(mesh=Mesh(dp_replicate=64), shard=Shard.NONE)
    assert len({phase.parts["gradients"] for phase in rank.phases}) == 1
    assert phase_of(rank, Stage.FORWARD, "head").gathered == 0
    (layer,) = (block for block in facts().model.blocks if block.name == "layer")
    assert layer.autocast is not None
    kept = layer.autocast.activations.none.total + 2 * layer.parameter_count
    assert rank.kept["layer"] == pytest.approx(kept, abs=1)


def test_one_device_makes_gradients_as_backward_goes() -> None:
    rank = only(mesh=Mesh(), shard=Shard.NONE, gradient_accumulation_steps=1)
    _, layer, head = facts().model.blocks
    assert layer.added is not None
    found = [phase.parts["gradients"] for phase in rank.phases if phase.stage is Stage.BACKWARD]
    # a layer holds most when the gradient of its last product is there
    assert found[:2] == [0, pytest.approx(4 * (head.parameter_count + layer.added.trainable), abs=1)]
    assert found == sorted(found)
    assert rank.phases[0].parts["gradients"] == 0
    assert rank.phases[-1].parts["gradients"] == 4 * facts().model.parameters
    # what a second micro-batch adds to
    several = only(mesh=Mesh(), shard=Shard.NONE, gradient_accumulation_steps=2)
    assert {phase.parts["gradients"] for phase in several.phases} == {4 * facts().model.parameters}


def test_a_peak_that_is_no_repeat_of_its_own_is_told() -> None:
    job = facts("vit-l-16", on="dgx-h100:2")
    pipelined = plan(
        mesh=Mesh(pp=4, dp_shard=4),
        gradient_accumulation_steps=4,
        pp_schedule=PipelineSchedule.ONE_F_ONE_B,
    )
    fullest = max(memory_by_phase(job, pipelined), key=lambda rank: rank.peak.total)
    # all is gathered by then, and the layers' gradients are there
    assert (fullest.peak.block, fullest.peak.repeat) == ("patches", "at the end")
    assert fullest.peak.total == assess(job, pipelined).estimate.memory.total
