"""What ranks of a sequence add to the peak, by hand: all keys and values, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jobs import block, job, plan

from parastrat.assess import assess, plans_table
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.estimate import MemoryEstimate
from parastrat.memory import PARTS, memory_columns, plan_memory
from parastrat.memory.floors import memory_floor
from parastrat.memory.quick import quick_floor
from parastrat.model import Block, Parameters, Split
from parastrat.moments import Attends
from parastrat.plan import Backend, ContextMethod, Mesh, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.saved import Activations, Saved
from parastrat.sources import load_source
from parastrat.sources.training import trained_model
from parastrat.tables import facts_columns
from parastrat.workload import Optimizer, Precision, Workload

BARE = {"fragmentation": 0.0, "context_bytes": 0, "step_constant_s": 1.0}
#: bytes of a sample: kept, made beside it, and gone of both as attention runs; of all keys and values; made
#: of them, and of a rank's own queries; and attention's output
KEPT, MADE, GONE, KEYS, OF_ALL, OF_OWN, OUTPUT = 10_000, 6000, 3000, 800, 2000, 400, 160
#: of all gradients the share that attention's projections have, which come later
LATER = 0.25
CP = 4


def attends(**changes: Any) -> Attends:
    default: dict[str, Any] = {
        "meanwhile": 1 - LATER,
        "freed": Saved(tensor=GONE),
        "gathered": Saved(tensor=KEYS),
        "joined": Saved(tensor=OUTPUT),
        "moments": ((Saved(tensor=OF_ALL), Saved(tensor=OF_OWN)),),
    }
    return Attends(**(default | changes))


def layer(attending: Attends | None, **changes: Any) -> Block:
    kept, inputs = Saved(tensor=KEPT), Saved(tensor=100)
    default: dict[str, Any] = {
        "activations": Activations(none=kept, attention=kept, selective=inputs, full=inputs),
        "working": Saved(tensor=MADE),
        "meanwhile": 1.0,
        "attends": attending,
    }
    return block(**(default | changes))


def facts(attending: Attends | None, **changes: Any) -> Facts:
    return job(
        layer(attending, **changes), optimizer=Optimizer.SGD, precision=Precision.BF16_MIXED, stack=BARE
    )


def memory(given: Facts, **fields: Any) -> MemoryEstimate:
    # one sample on each rank
    return assess(given, plan(**({"cp": CP, "micro_batch_size": CP} | fields))).estimate.memory


def more(attending: Attends, **fields: Any) -> int:
    """Return what ranks of a sequence add to the peak."""
    return memory(facts(attending), **fields).total - memory(facts(None), **fields).total


def test_keys_and_values_of_all_ranks_are_there_with_their_gradients() -> None:
    # beside what is gone by then; and the output that is put together, of which that is so as well
    assert more(attends()) == CP * OF_ALL + OF_OWN - GONE
    # else most is there before, with that output
    assert more(attends(freed=Saved(tensor=MADE + CP * OF_ALL))) == OUTPUT


def test_of_several_moments_that_with_most_counts() -> None:
    later = Saved(tensor=OF_ALL - 500), Saved(tensor=OF_OWN + 500 * CP + 1)
    both = attends(moments=(*attends().moments, later))
    assert more(both) == more(attends()) + 1


def test_a_rank_alone_gathers_nothing() -> None:
    for shard in (Shard.NONE, Shard.PARAMETERS):
        alone = {"cp": 1, "dp_shard": 4, "shard": shard, "micro_batch_size": 1}
        assert more(attends(), **alone) == 0


def test_ranks_that_pass_keys_on_in_a_ring_gather_none() -> None:
    assert more(attends(), cp_method=ContextMethod.RING) == 0


def test_a_block_that_is_made_again_holds_those_of_other_ranks_before() -> None:
    again = {"recompute": Recompute.FULL}
    late = attends(freed=Saved(tensor=MADE + CP * OF_ALL))
    assert more(late, **again) == (CP - 1) * KEYS + OUTPUT
    # as attention runs they are among what it was said to make
    assert more(attends(), **again) == CP * OF_ALL + OF_OWN - GONE - KEYS


def test_tp_divides_them_by_heads() -> None:
    fields = {"tp": 2}
    assert more(attends(), **fields) == (CP * OF_ALL + OF_OWN - GONE) // 2
    whole = {
        name: Saved(replicated=getattr(attends(), name).tensor) for name in ("freed", "gathered", "joined")
    }
    undivided = attends(**whole, moments=((Saved(replicated=OF_ALL), Saved(replicated=OF_OWN)),))
    assert more(undivided, **fields) == CP * OF_ALL + OF_OWN - GONE


def test_of_a_unit_gradients_of_its_projections_come_later() -> None:
    parameters, sharded = (Parameters(trainable=1000),), {"shard": Shard.PARAMETERS, "dp_shard": 2}
    peaks = [memory(facts(own, parameters=parameters), **sharded).transient for own in (attends(), None)]
    assert peaks[0] - peaks[1] == CP * OF_ALL + OF_OWN - GONE - LATER * 2 * 1000 - OUTPUT


def test_positions_are_divided_over_tp_between_the_blocks_alone() -> None:
    def head(**fields: Any) -> float:
        kept = Saved(sequence=KEPT)
        every = Activations(none=kept, attention=kept, selective=kept, full=kept)
        given = facts(None, activations=every, working=Saved(), unit=False)
        tp = {"tp": 2, "sequence_parallel": True, "shard": Shard.PARAMETERS, "dp_shard": 2}
        return memory(given, **tp, **fields).activations

    assert head() == KEPT
    assert head(cp=1, micro_batch_size=1) == KEPT / 2


def test_all_positions_are_there_before_a_head_whose_code_counts_them() -> None:
    def held(**fields: Any) -> tuple[int, int]:
        given = facts(None, unit=False, between=Saved(replicated=50))
        found = memory(given, shard=Shard.PARAMETERS, dp_shard=2, **fields)
        return found.activations - KEPT, found.transient - MADE

    # the norm's input; and its output, up to the end of a loss that ranks compute together
    assert held() == ((CP - 1) * 50, 0)
    assert held(loss_parallel=True)[1] == CP * 50
    assert held(cp=1, micro_batch_size=1) == (0, 0)


MODELS = ("llama-3.1-8b", "falcon-7b", "gpt3-5b", "mixtral-8x7b", "deepseek-v2-lite", "mistral-large-2")


def resolved(name: str) -> Facts:
    workload = Workload(
        global_batch_size=64,
        sequence_length=4096,
        optimizer=Optimizer.ADAMW,
        precision=Precision.BF16_MIXED,
    )
    stack = load_stack("torch")
    model = trained_model(load_source(name), workload, stack.kernels)
    return Facts(model=model, hardware=load_hardware("dgx-h100:2"), workload=workload, stack=stack)


def plans() -> list[Plan]:
    return [
        Plan(
            mesh=mesh,
            micro_batch_size=size,
            gradient_accumulation_steps=steps,
            precision=Precision.BF16_MIXED,
            backend=Backend.NCCL,
            shard=shard,
            recompute=recompute,
            sequence_parallel=mesh.tp > 1,
            loss_parallel=mesh.tp > 1,
        )
        for mesh in (
            Mesh(dp_shard=16),
            Mesh(dp_shard=4, cp=4),
            Mesh(dp_shard=4, cp=2, tp=2),
            Mesh(dp_shard=4, cp=4, ep=4),
            Mesh(dp_shard=4, cp=2, tp=2, ep=2),
            # what a first layer keeps of a whole sequence weighs most
            Mesh(cp=2, tp=8),
        )
        for shard in ((Shard.NONE, Shard.PARAMETERS) if mesh.ep == 1 else (Shard.PARAMETERS,))
        for recompute in Recompute
        for size, steps in ((1, 1), (4, 2), (64, 1))
    ]


@pytest.mark.parametrize("name", MODELS)
def test_plans_in_columns_are_as_each_alone_and_above_their_floors(name: str) -> None:
    given, several = resolved(name), plans()
    columns = Columns({**facts_columns(given), **plans_table(several)})
    found = memory_columns(given, columns)
    for row, each in enumerate(several):
        alone = plan_memory(given, each)
        for part in PARTS:
            assert found[part][row] == pytest.approx(getattr(alone, part), abs=2), (each, part)
    for floor in (memory_floor, quick_floor):
        for place, least in enumerate(floor(given, columns, tuple(Recompute))):
            own = np.array([each.recompute is list(Recompute)[place] for each in several])
            assert (least[own] <= found["total"][own] + len(PARTS)).all()


def test_of_what_is_not_gathered_nothing_comes_later_beside_plans_that_gather() -> None:
    given = facts(attends(), parameters=(Parameters(trainable=600),))
    fields = {"cp": CP, "micro_batch_size": CP}
    several = [plan(**fields, shard=shard) for shard in (Shard.NONE, Shard.PARAMETERS) for _ in range(5)]
    found = memory_columns(given, Columns({**facts_columns(given), **plans_table(several)}))
    for row, each in enumerate(several):
        assert found["total"][row] == plan_memory(given, each).total


def test_experts_of_a_block_that_is_two_units_are_gone_as_attention_runs() -> None:
    rest, experts, ep = 600, 8000, 4
    parameters = (Parameters(trainable=rest), Parameters(trainable=experts, split=Split.EXPERT))
    stack = {**BARE, "experts_apart": True}

    def peak(attending: Attends | None) -> int:
        own = layer(attending, parameters=parameters, repeat=3)
        given = job(own, optimizer=Optimizer.SGD, precision=Precision.BF16_MIXED, stack=stack)
        return memory(given, dp_shard=2, ep=ep, shard=Shard.PARAMETERS).transient

    much = attends(moments=((Saved(tensor=10**6), Saved()),), meanwhile=1.0)
    # gathered are the rest of this block and of the one behind; of experts there are copied gradients, and
    # what two ranks that hold the same have reduced of them
    made = MADE - GONE - OUTPUT + CP * 10**6
    gathered = 2 * (2 * rest + rest) + 4 * (experts // ep + experts // ep // 2)
    assert peak(much) == made + gathered
