"""Experts that are FSDP2 units of their own, by hand: what is gathered of them, and what of them waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jobs import block, job, plan

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.estimate import MemoryEstimate
from parastrat.memory import PARTS, memory_columns, plan_memory
from parastrat.memory.floors import memory_floor
from parastrat.memory.gathered import When
from parastrat.memory.one_plan import one_plan
from parastrat.memory.quick import quick_floor
from parastrat.model import Parameters, Split
from parastrat.moments import Halfway
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.saved import Activations, Saved
from parastrat.sources import load_source
from parastrat.tables import facts_columns, plan_columns
from parastrat.workload import Optimizer, Precision, Workload

APART = {"fragmentation": 0.0, "context_bytes": 0, "step_constant_s": 1.0, "experts_apart": True}
#: parameters of the table and the head, which are the root's; of a block without its experts; of all of
#: its experts, and of those that a rank holds
TABLE, HEAD, REST, EXPERTS, EP = 100, 200, 600, 8000, 4
ROOT, OWN = TABLE + HEAD, EXPERTS // EP
#: what of them a rank holds reduced
SHARE = OWN // (8 // EP)
DIVIDED = {"dp_shard": 8, "ep": EP, "shard": Shard.PARAMETERS}
#: a second micro-batch finds all gradients, and makes none anew
LATER: dict[str, Any] = {"gradient_accumulation_steps": 2}
IN_STAGES = {"pp": 3, "pp_schedule": PipelineSchedule.GPIPE, "gradient_accumulation_steps": 8}
#: bytes that decide what moment holds most
MUCH = 10**6


def facts(kept: float = 0, working: float = 0, **changes: Any) -> Facts:
    """Return a job of three blocks with experts, whose tensors all belong to these."""
    stack = APART | changes.pop("stack", {})
    saved = Saved(expert=kept)
    layer: dict[str, Any] = {
        "repeat": 3,
        "parameters": (Parameters(trainable=REST), Parameters(trainable=EXPERTS, split=Split.EXPERT)),
        "activations": Activations(none=saved, attention=saved, selective=saved, full=saved),
        "working": Saved(expert=working),
        # no gradients are there as most is
        "meanwhile": 0.0,
    }
    table, head = (
        block(parameters=(Parameters(trainable=count),), unit=False, name=name)
        for name, count in (("table", TABLE), ("head", HEAD))
    )
    return job(
        table,
        block(**(layer | changes)),
        head,
        optimizer=Optimizer.SGD,
        precision=Precision.BF16_MIXED,
        stack=stack,
    )


def memory(given: Facts, **fields: Any) -> MemoryEstimate:
    return assess(given, plan(**DIVIDED, **fields)).estimate.memory


def moved(reduced: int, gathered: int) -> int:
    """Return bytes of gradients as they are reduced, and of what is in the format of products."""
    return 4 * reduced + 2 * gathered


def test_while_experts_run_only_the_rest_of_the_block_behind_is_gathered() -> None:
    found = memory(facts(working=MUCH))
    # and gradients of the head, and copied ones of the rest of the block before
    assert found.transient - MUCH == moved(REST, ROOT + HEAD + 2 * REST + OWN)


def test_without_resharding_all_that_has_not_run_is_gathered() -> None:
    found = memory(facts(working=MUCH), reshard_after_forward=False)
    # as the first block runs
    assert found.transient - MUCH == moved(0, ROOT + HEAD + 3 * (REST + OWN))


def test_gradients_of_experts_are_copied_when_these_are_gathered_no_more() -> None:
    # what the rest has made by then is not known, and the root's of the micro-batch before wait
    copied = moved(OWN + ROOT, ROOT + HEAD + 2 * REST + OWN)
    assert memory(facts(), **LATER).transient == copied
    # what experts keep is gone
    assert memory(facts(kept=100), **LATER).transient == copied - 100
    # a share of all gradients comes behind them
    halfway = Halfway(meanwhile=1 - 300 / (REST + EXPERTS), freed=Saved())
    assert memory(facts(halfway=halfway), **LATER).transient == copied + 2 * (REST - 300)


def test_experts_are_reduced_before_the_rest_of_their_block_has_run() -> None:
    # their copies, beside all gradients of the rest
    ended = moved(OWN + SHARE, ROOT + HEAD + 3 * REST)
    assert memory(facts()).transient == ended
    # what they keep is gone
    assert memory(facts(kept=100)).transient == ended - 100


def test_where_units_end_the_last_finds_gradients_of_others_or_the_one_before_has_one_prefetched() -> None:
    (rank,) = one_plan(facts(), plan(**DIVIDED)).ranks
    (ended,) = [
        each for each in rank.moments if each.when is When.END and each.start and each.start.of_unit
    ]
    # of two blocks, but what is prefetched of the last one's rest
    assert ended.parts["gradients"] == 2 * 4 * (REST / 8 + SHARE) - 2 * REST


def test_the_last_gradient_of_experts_sharded_along_columns_is_beside_their_copy() -> None:
    largest = Parameters(trainable=EXPERTS // 2, split=Split.EXPERT)

    def copied(experts: int) -> int:
        given = facts(added=largest)
        return memory(replace(given, model=replace(given.model, experts=experts)), **LATER).transient

    # three on a rank do not divide over two ranks that hold the same, four do
    assert copied(3 * EP) - copied(4 * EP) == 2 * (OWN - OWN // 2)


def test_a_copy_of_few_experts_is_less_than_what_it_takes_the_place_of() -> None:
    few = {"parameters": (Parameters(trainable=REST), Parameters(trainable=EP * 10, split=Split.EXPERT))}
    halfway = Halfway(meanwhile=1.0, freed=Saved())
    # beside the copied gradients of the block before, with all of its own
    assert memory(facts(halfway=halfway, **few)).transient == moved(REST, ROOT + HEAD + 3 * REST + 2 * 10)


def test_experts_are_there_twice_as_they_are_copied_out_of_what_was_gathered() -> None:
    # beside all that the block keeps for them, and before the block behind is gathered
    found = memory(facts(kept=MUCH))
    assert (found.activations, found.transient) == (3 * MUCH, moved(0, ROOT + HEAD + REST + 2 * OWN))
    whole = memory(facts(kept=MUCH), reshard_after_forward=False)
    assert whole.transient == moved(0, ROOT + HEAD + 3 * (REST + OWN))


@pytest.mark.parametrize(
    ("stack", "fields"),
    [
        ({"experts_apart": False}, {}),
        ({}, {"ep": 1}),
        ({"gathers_in_graph": True}, IN_STAGES),
        ({"gathers_in_graph": True}, {}),
    ],
)
def test_elsewhere_a_block_is_one_unit(stack: dict[str, Any], fields: dict[str, Any]) -> None:
    together = facts(working=MUCH, stack=stack | {"experts_apart": False})
    given = plan(**(DIVIDED | fields))
    found = assess(facts(working=MUCH, stack=stack), given).estimate.memory
    assert found == assess(together, given).estimate.memory


def test_in_stages_gradients_of_experts_are_added_up_on_their_own() -> None:
    given = plan(**(DIVIDED | IN_STAGES))
    found, together = (
        assess(facts(working=MUCH, stack={"experts_apart": apart}), given).estimate.memory.transient
        for apart in (True, False)
    )
    # they are gone before the rest has run; all are there in the format of sums anyway
    assert found == together - 2 * OWN


def test_a_parallel_loss_finds_the_experts_that_a_forward_gathered_last() -> None:
    given = facts()
    *others, head = given.model.blocks
    much = replace(head, working=Saved(replicated=MUCH))
    given = replace(given, model=replace(given.model, blocks=(*others, much)))
    found, whole = (memory(given, tp=2, loss_parallel=parallel).transient for parallel in (True, False))
    # a whole one has most in its backward, where the rest of that block is prefetched
    assert found - whole == 2 * (OWN - REST)
    # where units stay gathered nothing is: left is what the forward gathered last, as it came
    kept: dict[str, Any] = {"tp": 2, "reshard_after_forward": False}
    found, whole = (memory(given, **kept, loss_parallel=parallel).transient for parallel in (True, False))
    assert found - whole == 2 * OWN


@pytest.mark.parametrize(
    ("ends", "largest"),
    [
        ({}, REST + OWN),
        # the head and the block's rest, or its two units
        ({"ends_apart": True}, REST + OWN),
    ],
)
def test_the_two_units_of_a_block_are_on_their_way(ends: dict[str, Any], largest: int) -> None:
    # all gradients are there in a second micro-batch
    found = memory(facts(working=MUCH, stack=ends), gradient_accumulation_steps=2)
    assert found.overhead == 2 * largest


def test_of_ends_that_are_units_no_root_stays() -> None:
    found = memory(facts(working=MUCH, stack={"ends_apart": True}))
    assert found.transient - MUCH == moved(REST, 2 * REST + OWN)


@pytest.mark.parametrize("model", ["deepseek-v2-lite", "mixtral-8x7b"])
def test_experts_of_many_plans_are_as_of_each_and_floors_are_no_more(model: str) -> None:
    source, stack = load_source(model), load_stack("torch")
    assert source is not None
    fields = {"precision": Precision.BF16_MIXED, "backend": Backend.NCCL}
    given = [
        Plan(
            mesh=Mesh(dp_shard=16 // cp, cp=cp, tp=tp, ep=ep),
            shard=Shard.PARAMETERS,
            micro_batch_size=size,
            gradient_accumulation_steps=1,
            reshard_after_forward=reshard,
            recompute=policy,
            sequence_parallel=tp > 1,
            loss_parallel=tp > 1,
            **fields,
        )
        for cp, tp in ((1, 1), (4, 1), (1, 4))
        for ep in (1, 2, 8)
        for size in (1, 4)
        for reshard in (True, False)
        for policy in Recompute
    ]
    given += [
        replace(
            each,
            mesh=replace(each.mesh, pp=2),
            pp_schedule=PipelineSchedule.ONE_F_ONE_B,
            gradient_accumulation_steps=4,
        )
        for each in given
        if not each.reshard_after_forward
    ]
    workload = Workload(
        global_batch_size=64, sequence_length=4096, optimizer=Optimizer.ADAMW, precision=fields["precision"]
    )
    own = Facts(
        model=source.at(4096, fields["precision"], stack.kernels),
        hardware=load_hardware("dgx-h100:2"),
        workload=workload,
        stack=stack,
    )
    rows = [plan_columns(each) for each in given]
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns = Columns({**facts_columns(own), **table})
    together = memory_columns(own, columns)
    for row, each in enumerate(given):
        alone = plan_memory(own, each)
        assert [int(together[part][row]) for part in PARTS] == [getattr(alone, part) for part in PARTS]
    floor, sooner = (least(own, columns, tuple(Recompute)) for least in (memory_floor, quick_floor))
    policy = np.array([list(Recompute).index(each.recompute) for each in given])
    assert (floor[policy, np.arange(len(given))] <= together["total"]).all()
    assert (sooner <= floor * (1 + 1e-12)).all()
    # where a block is one unit more is gathered
    one = memory_columns(replace(own, stack=replace(stack, experts_apart=False)), columns)["total"]
    divided = np.array([each.mesh.ep > 1 for each in given])
    assert (one[~divided] == together["total"][~divided]).all()
    assert (one[divided] > together["total"][divided]).mean() > 0.5
