"""Every part of the peak by hand, on blocks of a few bytes; plain SGD in fp32 keeps four bytes a parameter.

Where a test says nothing else, context and fragmentation take nothing and one rank trains one sample.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from jobs import block, flying, job, matmul, plan, row

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.estimate import MemoryEstimate
from parastrat.hardware import DeviceType
from parastrat.memory import memory_columns, memory_totals
from parastrat.memory.kinds import Shared, shared_bytes
from parastrat.memory.one_plan import one_plan
from parastrat.memory.phases import memory_by_phase
from parastrat.memory.plans import shares_of
from parastrat.model import Block, Parameters, Split
from parastrat.moments import Busy, Halfway
from parastrat.plan import Offload, PipelineSchedule, Recompute, Shard
from parastrat.ranks import ParameterTotals
from parastrat.ranks.division import division, local, shard_ranks
from parastrat.ranks.states import element_bytes
from parastrat.ranks.totals import block_totals
from parastrat.saved import Activations, Saved
from parastrat.stack import Kernels
from parastrat.workload import Optimizer, Precision

#: the constant, for blocks that compute nothing
BARE = {"fragmentation": 0.0, "context_bytes": 0, "step_constant_s": 1.0}
PLAIN: dict[str, Any] = {"optimizer": Optimizer.SGD, "precision": Precision.FP32}
SHARDED = {"dp_shard": 2, "shard": Shard.PARAMETERS}


def holding(*blocks: Block, **changes: Any) -> Facts:
    given: dict[str, Any] = PLAIN | {"stack": BARE} | changes
    return job(*blocks, **given)


def memory(facts: Facts, **fields: Any) -> MemoryEstimate:
    return assess(facts, plan(**fields)).estimate.memory


def keeping(kept: float, working: float = 0, **changes: Any) -> Block:
    saved = Saved(replicated=kept)
    activations = Activations(none=saved, attention=saved, selective=saved, full=saved)
    return block(activations=activations, working=Saved(replicated=working), **changes)


def parameters(count: int, split: Split = Split.REPLICATED, *, frozen: int = 0) -> tuple[Parameters, ...]:
    return (Parameters(trainable=count, frozen=frozen, split=split),)


@pytest.mark.parametrize(
    ("fields", "size"),
    [
        ({}, 16 + 40 + 80 + 160),
        ({"tp": 4}, 16 + 40 / 4 + 80 + 160),
        ({"tp": 4, "sequence_parallel": True}, 16 + 40 / 4 + 80 / 4 + 160),
        ({"tp": 4, "loss_parallel": True}, 16 + 40 / 4 + 80 + 160 / 4),
        ({"micro_batch_size": 3}, 3 * (16 + 40 + 80 + 160)),
        ({"cp": 2}, (16 + 40 + 80 + 160) / 2),
    ],
)
def test_what_divides_activations(fields: dict[str, Any], size: float) -> None:
    assert bytes_of(Shared(16, 40, 80, None, 160), **fields) == size


def bytes_of(shared: Shared, **fields: Any) -> float:
    columns = row(**fields)
    return float(shared_bytes(shared, shares_of(columns, division(columns))))


@pytest.mark.parametrize(
    ("heads", "fields", "size"),
    [
        (8, {"tp": 4, "sequence_parallel": True}, 120 / 4),
        # attention whose heads do not divide is whole, and so is the sequence behind it
        (6, {"tp": 4, "sequence_parallel": True}, 120),
        (8, {"tp": 4}, 120),
        (None, {"tp": 4, "sequence_parallel": True}, 120),
        (8, {"tp": 4, "ep": 2, "dp_shard": 2, "sequence_parallel": True}, 120 / 4),
    ],
)
def test_whole_experts_keep_what_their_stretch_of_the_sequence_takes(
    heads: int | None, fields: dict[str, Any], size: float
) -> None:
    columns = row(**fields).joined({"token_heads": heads, "divides_experts": False})
    shared = Shared(0, expert=120)
    assert shared_bytes(shared, shares_of(columns, division(columns))) == size
    # whatever they are given, their parameters are as whole
    assert division(columns).experts == fields.get("ep", 1)


@pytest.mark.parametrize("fields", [{}, {"micro_batch_size": 3}, {"tp": 4, "cp": 2}])
def test_what_is_as_large_for_any_number_of_samples(fields: dict[str, Any]) -> None:
    assert bytes_of(Shared(0, fixed=16), **fields) == 16


@pytest.mark.parametrize(
    ("meanwhile", "once", "twice"),
    [
        # all of them beside all that the block makes for itself
        (None, 300 + 80, 10 + 300 + 80),
        (0.0, 10 + 300, 10 + 300 + 80),
        (0.25, 10 + 300 + 20, 10 + 300 + 80 + 20),
    ],
)
def test_gradients_that_a_block_makes_before_it_holds_most(
    meanwhile: float | None, once: int, twice: int
) -> None:
    # of four bytes each, as the weights are
    layer = keeping(10, 300, parameters=parameters(20), meanwhile=meanwhile)
    assert memory(holding(layer)).total - 80 == once
    again = replace(layer, repeat=2)
    assert memory(holding(again)).total - 160 == twice
    # buckets of DDP hold all from the start
    assert memory(holding(layer), dp_replicate=2).total - 80 == 10 + 300 + 80


def test_a_loss_in_parallel_makes_more_or_less_as_the_stack_does() -> None:
    head = keeping(0, 100, loss_parallel_bytes=80.0)
    fields = {"tp": 4, "micro_batch_size": 3}
    assert memory(holding(head), **fields).transient == 300
    for more in (1, -1):
        job = holding(head, stack=BARE | {"parallel_loss_tensors": more})
        made = 300 + more * 3 * 80 / 4
        assert memory(job, **fields, loss_parallel=True).transient == made
        assert memory(job, **fields, cp=2, loss_parallel=True).transient == made / 2


@pytest.mark.parametrize(("fused", "copy"), [(False, 4 * 20), (True, 0)])
def test_a_stack_may_step_in_one_kernel(fused: bool, copy: int) -> None:
    layer = keeping(0, 0, parameters=parameters(20))
    facts = holding(layer, optimizer=Optimizer.ADAMW, stack=BARE | {"steps_in_one_kernel": fused})
    assert memory(facts).total == 20 * (4 + 4 + 8) + copy


def test_an_output_is_held_but_by_pipelines() -> None:
    head = keeping(0, 100, output=Saved(loss=40.0), repeat=2)
    assert memory(holding(head), micro_batch_size=2).transient == 200 + 80
    assert memory(holding(head), tp=4, loss_parallel=True).transient == 100 + 40 / 4
    fields = {"pp": 2, "gradient_accumulation_steps": 2, "pp_schedule": PipelineSchedule.GPIPE}
    assert memory(holding(head), **fields).transient == 100


def test_each_policy_keeps_its_own_and_makes_the_rest_again_for_one_layer() -> None:
    kept = {Recompute.NONE: 100, Recompute.ATTENTION: 70, Recompute.SELECTIVE: 30, Recompute.FULL: 10}
    activations = Activations(**{policy.value: Saved(replicated=size) for policy, size in kept.items()})
    layer = block(activations=activations, working=Saved(replicated=7), repeat=3)
    for policy, size in kept.items():
        assert one_plan(holding(layer), plan(recompute=policy)).kept == (size,)
        found = memory(holding(layer), recompute=policy)
        assert (found.activations, found.transient) == (3 * size, 7 + (100 - size))
    # a policy that keeps more than none makes nothing again
    odd = replace(activations, full=Saved(replicated=150))
    found = memory(holding(replace(layer, activations=odd)), recompute=Recompute.FULL)
    assert (found.activations, found.transient) == (3 * 150, 7)


@pytest.mark.parametrize(
    ("workings", "held", "transient"),
    [
        # backward starts at the end: the head with all kept
        ((0, 0, 0), 5 + 2 * 100 + 50, 0),
        ((0, 0, 40), 5 + 2 * 100 + 50, 40),
        # the first of the layers to run, when the head has freed its own
        ((0, 60, 0), 5 + 2 * 100, 60),
        # at last the embedding
        ((300, 60, 40), 5, 300),
    ],
)
def test_the_peak_is_the_worst_moment_of_backward(
    workings: tuple[int, int, int], held: int, transient: int
) -> None:
    kept, repeats = (5, 100, 50), (1, 2, 1)
    chain = [keeping(*each[:2], repeat=each[2]) for each in zip(kept, workings, repeats, strict=True)]
    found = memory(holding(*chain))
    assert (found.activations, found.transient, found.total) == (held, transient, held + transient)


def test_overhead_is_the_context_and_a_share_of_what_comes_and_goes() -> None:
    stack = BARE | {"context_bytes": 1000, "fragmentation": 0.1}
    layer = keeping(200, 100, repeat=2, parameters=parameters(50))
    assert memory(holding(layer, stack=stack)).overhead == 1000 + (2 * 200 + 100) / 10
    cpu = holding(layer, stack=stack, device={"type": DeviceType.CPU})
    assert memory(cpu).overhead == (2 * 200 + 100) / 10
    # at the end of backward: the first block's own
    late = holding(keeping(50, 1000), keeping(200), stack=stack)
    assert memory(late).overhead == 1000 + (50 + 1000) / 10
    # while the optimizer runs nothing comes and goes but its copy
    idle = holding(block(parameters=parameters(50)), stack=stack, optimizer=Optimizer.ADAMW)
    assert memory(idle).overhead == 1000
    assert memory(replace(idle, hardware=cpu.hardware)).overhead == 0


def test_frozen_parameters_have_neither_gradients_nor_states() -> None:
    layer = block(parameters=parameters(600, frozen=400), repeat=2)
    found = memory(holding(layer, optimizer=Optimizer.ADAMW))
    assert (found.parameters, found.gradients, found.optimizer) == (4 * 2000, 4 * 1200, 8 * 1200)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"offload": Offload.PARAMETERS},
        {"tp": 2},
        {**SHARDED, "micro_batch_size": 2},
        {"pp": 2, "gradient_accumulation_steps": 4, "pp_schedule": PipelineSchedule.ONE_F_ONE_B},
    ],
)
def test_every_rank_has_all_buffers(fields: dict[str, Any]) -> None:
    facts = holding(keeping(200, 100, repeat=2, parameters=parameters(50)), optimizer=Optimizer.ADAMW)
    masked = replace(facts, model=replace(facts.model, buffers=1000))
    without, found = memory(facts, **fields), memory(masked, **fields)
    assert found.parts == without.parts | {"parameters": without.parameters + 1000}
    table = Columns({name: np.array([value]) for name, value in row(**fields).known().items()})
    assert memory_totals(masked, table) == pytest.approx(memory_totals(facts, table) + 1000)
    rank, *_ = memory_by_phase(masked, plan(**fields))
    assert all(phase.parts["parameters"] >= 1000 for phase in rank.phases)


@pytest.mark.parametrize(
    ("shard", "parts"),
    [
        (Shard.NONE, (1, 1, 1)),
        (Shard.OPTIMIZER, (1, 1, 4)),
        (Shard.GRADIENTS, (1, 4, 4)),
        (Shard.PARAMETERS, (4, 4, 4)),
    ],
)
def test_each_choice_shards_the_ones_before_it(shard: Shard, parts: tuple[int, int, int]) -> None:
    # the layer's working bytes are at the peak with everything else; two micro-batches have gradients
    layer = keeping(0, 10**6, parameters=parameters(1200, frozen=400))
    facts = holding(layer, optimizer=Optimizer.ADAMW)
    found = memory(facts, dp_shard=4, shard=shard, gradient_accumulation_steps=2)
    weights, gradients, states = parts
    frozen = 400 / 4 if shard is Shard.PARAMETERS else 400
    assert found.parameters == 4 * (1200 / weights + frozen)
    assert found.gradients == 4 * 1200 / gradients
    assert found.optimizer == 8 * 1200 / states


def test_the_optimizers_step_copies_what_it_updates_once() -> None:
    # torch's foreach AdamW makes a temporary of all it updates; SGD works in place
    layer = block(parameters=parameters(1200))
    adam = holding(layer, optimizer=Optimizer.ADAMW)
    assert memory(adam).transient == 4 * 1200
    assert memory(adam, dp_shard=4, shard=Shard.OPTIMIZER).transient == 4 * 1200 / 4
    assert memory(adam, offload=Offload.OPTIMIZER).transient == 0
    assert memory(holding(layer)).transient == 0


@pytest.mark.parametrize(
    ("fields", "gradients"),
    [
        # at the loss nothing is reduced yet
        ({}, 0),
        # but the last micro-batch's
        ({"gradient_accumulation_steps": 2}, 4 * 600),
        # a pipeline reduces at the end of the step
        (
            {"pp": 2, "gradient_accumulation_steps": 2, "pp_schedule": PipelineSchedule.GPIPE},
            0,
        ),
    ],
)
def test_sharded_gradients_come_with_the_first_reduction(fields: dict[str, Any], gradients: int) -> None:
    head = keeping(0, 10**6, parameters=parameters(1200), unit=False)
    assert memory(holding(keeping(0), head), **SHARDED, **fields).gradients == gradients
    # before the embedding's backward units have been reduced, and the root has not
    early = memory(holding(head, keeping(0, parameters=parameters(800))), **SHARDED)
    assert early.gradients == 4 * 400


def test_gradients_that_are_not_sharded_are_always_there() -> None:
    head = keeping(0, 10**6, parameters=parameters(1200))
    assert memory(holding(head), dp_shard=2, shard=Shard.GRADIENTS).gradients == 4 * 600


#: a table of 100, three layers of 1,000, a head of 200; the root unit has 300
ROOT, UNIT, ALL, HEAD = 300, 1000, 3300, 200


def chain(busy: str, **changes: Any) -> Facts:
    """Return a job in which one block's working bytes, 10^6, decide the moment of the peak."""
    made = [
        keeping(
            0, 10**6 * (name == busy), repeat=repeat, unit=unit, parameters=parameters(count), name=name
        )
        for name, repeat, count, unit in (
            ("table", 1, 100, False),
            ("layer", 3, UNIT, True),
            ("head", 1, 200, False),
        )
    ]
    return holding(*made, **changes)


@pytest.mark.parametrize(
    ("busy", "reshard", "elements", "reduced"),
    [
        # the second unit and the next one, its gradients and the head's, and copied those of the first
        ("layer", True, ROOT + 2 * UNIT + UNIT + HEAD, UNIT),
        ("layer", False, ROOT + 2 * UNIT + UNIT + HEAD, UNIT),
        # at the loss the last layer is on its way, and no gradients exist
        ("head", True, ROOT + UNIT, 0),
        ("head", False, ROOT + 3 * UNIT, 0),
        # when the first block has run, the root's gradients are reduced, and its weights are freed
        ("table", True, ROOT, ROOT),
        ("table", False, ROOT, ROOT),
    ],
)
def test_what_fsdp2_has_gathered(busy: str, reshard: bool, elements: int, reduced: int) -> None:
    fields = {**SHARDED, "reshard_after_forward": reshard}
    # weights and gradients as multiplied, and gradients as reduced: 4 and 4 bytes in fp32
    assert memory(chain(busy), **fields).transient - 10**6 == 4 * elements + 4 * reduced
    # 2 and 4 bytes in bf16-mixed
    mixed = chain(busy, precision=Precision.BF16_MIXED)
    assert memory(mixed, **fields).transient - 10**6 == 2 * elements + 4 * reduced


@pytest.mark.parametrize(
    ("busy", "reshard", "elements", "reduced"),
    [
        # the second unit and the next one, with its gradients and copied those of the first
        ("layer", True, 2 * UNIT + UNIT, UNIT),
        ("layer", False, 2 * UNIT + UNIT, UNIT),
        # a loss runs behind all that is gathered for the forward, and before all that is for backward
        ("head", True, 0, 0),
        ("head", False, 3 * UNIT, 0),
        # the table's gradients: no product reads it
        ("table", True, 100, 100),
        ("table", False, 100, 100),
    ],
)
def test_what_a_graph_has_gathered(busy: str, reshard: bool, elements: int, reduced: int) -> None:
    facts = chain(busy, stack=BARE | {"gathers_in_graph": True}, precision=Precision.BF16_MIXED)
    found = memory(facts, **SHARDED, reshard_after_forward=reshard)
    assert found.transient - 10**6 == 2 * elements + 4 * reduced
    assert found.overhead == 0


@pytest.mark.parametrize(
    ("busy", "elements", "reduced"),
    [
        ("layer", 2 * UNIT + UNIT, UNIT),
        # the head stays gathered from the forward on
        ("head", HEAD, 0),
        # the table is gathered as its gradients are made
        ("table", 100 + 100, 100),
    ],
)
def test_what_fsdp2_has_gathered_of_ends_that_are_units(busy: str, elements: int, reduced: int) -> None:
    facts = chain(busy, stack=BARE | {"ends_apart": True}, precision=Precision.BF16_MIXED)
    assert memory(facts, **SHARDED).transient - 10**6 == 2 * elements + 4 * reduced


def test_ends_that_are_units_stay_gathered_in_a_pipeline_as_a_root_does() -> None:
    fields = {**SHARDED, "pp": 2, "pp_schedule": PipelineSchedule.GPIPE, "gradient_accumulation_steps": 4}
    apart, rooted = (
        memory(chain("layer", stack=BARE | {"ends_apart": own}), **fields).transient
        for own in (True, False)
    )
    assert apart == rooted


def test_the_roots_gradients_wait_while_another_micro_batch_runs() -> None:
    once, more = (
        memory(chain("head"), **SHARDED, gradient_accumulation_steps=steps).transient for steps in (1, 2)
    )
    assert more - once == 4 * ROOT
    # until the first unit reduces: the second finds that one's instead
    later = {
        memory(chain("layer"), **SHARDED, gradient_accumulation_steps=steps).transient for steps in (1, 2)
    }
    assert len(later) == 1
    alone = (memory(chain("head"), gradient_accumulation_steps=steps).transient for steps in (1, 2))
    assert len(set(alone)) == 1
    # a pipeline reduces once a step
    staged = {**SHARDED, "pp": 2, "pp_schedule": PipelineSchedule.GPIPE}
    piped = [
        memory(chain("head"), **staged, gradient_accumulation_steps=steps, micro_batch_size=4 // steps)
        for steps in (2, 4)
    ]
    assert piped[0].transient - 2 * 10**6 == piped[1].transient - 10**6


def test_ddp_accumulates_beside_its_buckets() -> None:
    def transient(facts: Facts, steps: int, **mesh: Any) -> int:
        return memory(facts, **mesh, gradient_accumulation_steps=steps).transient

    facts = chain("head")
    everything = ROOT + 3 * UNIT
    # 4 bytes of each gradient, at the loss of all micro-batches but the first
    assert transient(facts, 2, dp_replicate=2) - transient(facts, 1, dp_replicate=2) == 4 * everything
    # one device has no buckets, ZeRO's are not torch's, and Megatron's gradients stand in them
    assert transient(facts, 2) == transient(facts, 1)
    zero = {"dp_shard": 2, "shard": Shard.OPTIMIZER}
    assert transient(facts, 2, **zero) == transient(facts, 1, **zero)
    megatron = replace(facts, stack=replace(facts.stack, kernels=Kernels.FUSED))
    assert transient(megatron, 2, dp_replicate=2) == transient(megatron, 1, dp_replicate=2)


def test_a_parallel_loss_finds_what_a_forward_gathered_last() -> None:
    facts = chain("head", precision=Precision.BF16_MIXED)
    for reshard, copy in ((False, UNIT), (True, 0)):
        fields = {**SHARDED, "tp": 2, "reshard_after_forward": reshard}
        parallel, whole = (memory(facts, **fields, loss_parallel=own).transient for own in (True, False))
        # with resharding as much is prefetched for backward
        assert parallel - whole == 2 * copy


@pytest.mark.parametrize(
    ("precision", "schedule", "elements"),
    [
        # of two stages of two layers the second's wait; the first stage's backward is whole
        (Precision.BF16_MIXED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 2 * UNIT),
        (Precision.BF16_MIXED, PipelineSchedule.ONE_F_ONE_B, 0),
        # in one format there is nothing to copy
        (Precision.FP32, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 0),
    ],
)
def test_gradients_of_a_split_backward_wait_to_be_copied(
    precision: Precision, schedule: PipelineSchedule, elements: int
) -> None:
    layer = keeping(0, 10**6, repeat=4, parameters=parameters(UNIT), operators=(matmul(1),))
    table = keeping(0, parameters=parameters(100), unit=False)
    fields = {**SHARDED, "pp": 2, "pp_schedule": schedule, "gradient_accumulation_steps": 8}
    first, second = one_plan(holding(table, layer, precision=precision), plan(**fields)).ranks
    assert (first.held.uncast, second.held.uncast) == (0, elements)
    begins = second.moments[1]
    assert begins.gathered == precision.compute_bytes * (2 * UNIT + UNIT + elements) + 4 * 2 * UNIT


def test_the_only_layer_is_prefetched_at_the_loss() -> None:
    layer = keeping(0, parameters=parameters(UNIT))
    head = keeping(0, 10**6, parameters=parameters(200), unit=False)
    assert memory(holding(layer, head), **SHARDED).transient - 10**6 == 4 * (200 + UNIT)


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16_MIXED])
def test_a_pipeline_keeps_all_gathered_and_unreduced(precision: Precision) -> None:
    layer = keeping(0, 10**6, repeat=4, parameters=parameters(UNIT), operators=(matmul(1),))
    fields = {**SHARDED, "pp": 2, "pp_schedule": PipelineSchedule.GPIPE}
    found = memory(holding(layer, precision=precision), **fields).transient - 10**6
    # 2 layers on a rank, and the running one's gradients before they are copied, beside the other's
    assert found == precision.compute_bytes * (2 * UNIT + UNIT) + 4 * UNIT
    # a later micro-batch finds those of both
    later = memory(holding(layer, precision=precision), **fields, gradient_accumulation_steps=2)
    assert later.transient - 10**6 == found + 4 * UNIT


@pytest.mark.parametrize("kept", [100, 10**6])
def test_gradients_are_not_there_while_all_micro_batches_of_a_step_are_in_flight(kept: int) -> None:
    layer = keeping(kept, repeat=4, parameters=parameters(UNIT), operators=(matmul(1),))
    fields = {**SHARDED, "pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
    few, many = (memory(holding(layer), **fields, gradient_accumulation_steps=steps) for steps in (2, 8))
    # a rank of two layers has two in flight: they are there when one of these is freed
    assert many.total - few.total == pytest.approx(min(4 * 2 * UNIT, 2 * kept), abs=len(few.parts))
    alone, later = (
        memory(holding(layer), **fields | {"dp_shard": 1}, gradient_accumulation_steps=steps)
        for steps in (2, 8)
    )
    # where nothing is gathered gradients of a step before may be left
    assert alone.transient == later.transient


@pytest.mark.parametrize(
    ("fields", "gathers"),
    [
        ({}, False),
        ({"tp": 2}, False),
        ({"dp_replicate": 2}, False),
        ({"dp_shard": 2}, True),
        ({"cp": 2}, True),
        # ranks of a tensor-parallel group share experts' shards
        ({"tp": 2, "ep": 2}, True),
        ({"cp": 2, "ep": 2}, True),
    ],
)
def test_only_what_is_sharded_is_gathered(fields: dict[str, int], gathers: bool) -> None:
    found = memory(chain("layer"), shard=Shard.PARAMETERS, **fields).transient - 10**6 / fields.get("cp", 1)
    assert found == (4 * (ROOT + 2 * UNIT + UNIT + HEAD) + 4 * UNIT if gathers else 0)


def test_frozen_parameters_are_gathered_too() -> None:
    layer = keeping(0, 10**6, repeat=3, parameters=parameters(600, frozen=400))
    found = memory(holding(layer), **SHARDED, reshard_after_forward=False).transient - 10**6
    # the first has run, and is freed
    assert found == 4 * (2 * UNIT + UNIT) + 4 * UNIT


def test_autocast_casts_frozen_weights_as_well() -> None:
    layer = keeping(0, 10**6, repeat=3, parameters=parameters(600, frozen=400))
    product = matmul(1)
    mixed = holding(replace(layer, operators=(product,)), precision=Precision.BF16_MIXED)
    assert memory(mixed, dp_replicate=2).activations == 2 * 3 * UNIT
    assert memory(mixed, shard=Shard.GRADIENTS, dp_shard=2).activations == 2 * 3 * UNIT
    # tables are read as they are
    assert memory(holding(layer, precision=Precision.BF16_MIXED)).activations == 0


@pytest.mark.parametrize(
    ("fields", "kept", "made"),
    [
        ({}, 3 * 2 * UNIT, 10**6),
        ({"recompute": Recompute.ATTENTION}, 3 * 2 * UNIT, 10**6),
        # made again with the block; as the forward ends there are those of all
        ({"recompute": Recompute.FULL}, 0, 10**6 + 2 * UNIT),
        ({"recompute": Recompute.SELECTIVE}, 0, 10**6 + 2 * UNIT),
    ],
)
def test_where_the_casts_of_weights_live(fields: dict[str, Any], kept: int, made: int) -> None:
    product = matmul(1)
    layer = keeping(0, 10**6, repeat=3, parameters=parameters(UNIT), operators=(product,))
    fields["dp_replicate"] = 2  # whose buckets are there all the time
    found = memory(holding(layer, precision=Precision.BF16_MIXED), **fields)
    assert (found.activations, found.transient) == (kept, made)
    small = replace(layer, working=Saved())
    end = memory(holding(small, precision=Precision.BF16_MIXED), **fields)
    assert end.transient == (0 if kept else 3 * 2 * UNIT)


def test_each_micro_batch_in_flight_has_its_own_casts() -> None:
    product = matmul(1)
    layer = keeping(0, 10**6, repeat=4, parameters=parameters(UNIT), operators=(product,))
    fields = {"pp": 2, "gradient_accumulation_steps": 8, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
    assert memory(holding(layer, precision=Precision.BF16_MIXED), **fields).activations == 2 * 2 * 2 * UNIT


@pytest.mark.parametrize(
    ("fields", "dense", "experts"),
    [
        ({}, 10 + 80, 160),
        ({"tp": 4}, 10 + 80 / 4, 160 / 4),
        # experts lie whole on ranks of ep, which takes ranks of tp in
        ({"tp": 4, "dp_shard": 2, "ep": 8}, 10 + 80 / 4, 160 / 8),
        ({"tp": 4, "ep": 2}, 10 + 80 / 4, 160 / 2),
    ],
)
def test_what_tp_and_ep_leave_of_parameters(fields: dict[str, Any], dense: float, experts: float) -> None:
    assert local(ParameterTotals(replicated=10, tensor=80, expert=160), row(**fields)) == (dense, experts)


@pytest.mark.parametrize(
    ("fields", "dense", "experts"),
    [
        ({"dp_shard": 4, "cp": 2, "tp": 2}, 8, 8),
        ({"dp_shard": 4, "cp": 2, "tp": 2, "ep": 8}, 8, 2),
        ({"dp_shard": 4, "tp": 2, "ep": 2}, 4, 4),
        ({"dp_shard": 4, "ep": 2}, 4, 2),
        ({"dp_shard": 4, "dp_replicate": 3}, 4, 4),
    ],
)
def test_over_how_many_ranks_parameters_are_sharded(
    fields: dict[str, Any], dense: int, experts: int
) -> None:
    assert shard_ranks(row(**fields)) == (dense, experts)


def test_a_blocks_parameters_by_what_divides_them() -> None:
    groups = [Parameters(trainable=2**place, frozen=1, split=split) for place, split in enumerate(Split)]
    # a sequence-split group is the same on every rank
    found = block_totals(block(parameters=(*groups, groups[0])))
    assert found == ParameterTotals(
        replicated=2 * (1 + 1) + (4 + 1), tensor=2 + 1, expert=8 + 1, vocabulary=16 + 1
    )
    assert found.total == 9 + 3 + 9 + 17


@pytest.mark.parametrize(
    ("precision", "optimizer", "states"),
    [
        (Precision.FP32, Optimizer.SGD_MOMENTUM, 4),
        (Precision.BF16, Optimizer.SGD_MOMENTUM, 2),
        (Precision.BF16, Optimizer.ADAMW, 2 * 2),
        (Precision.FP16_MIXED, Optimizer.ADAMW, 2 * 4),
        (Precision.FP8, Optimizer.SGD_MOMENTUM, 4),
    ],
)
def test_states_are_in_the_weights_format(
    precision: Precision, optimizer: Optimizer, states: float
) -> None:
    assert element_bytes(job(precision=precision, optimizer=optimizer)).optimizer == states


def test_adafactors_row_and_column_of_a_model_without_a_width() -> None:
    unknown = job(optimizer=Optimizer.ADAFACTOR, model={"hidden": None})
    assert element_bytes(unknown).optimizer == 2 * 4 / 1024
    assert element_bytes(job(optimizer=Optimizer.ADAFACTOR)).optimizer == 2 * 4 / 256


@pytest.mark.parametrize(
    ("precision", "reduce", "cast"),
    [(Precision.FP32, 4, 0), (Precision.BF16, 4, 0), (Precision.BF16_MIXED, 4, 2), (Precision.FP8, 4, 2)],
)
def test_bytes_reduced_and_cast(precision: Precision, reduce: int, cast: int) -> None:
    element = element_bytes(job(precision=precision))
    # a foreach optimizer's copy is of a state
    assert (element.reduce, element.cast, element.step) == (
        reduce,
        cast,
        2 if precision is Precision.BF16 else 4,
    )
    short = element_bytes(job(precision=precision, stack={"mixed_parameter_bytes": 2}))
    assert short.cast == 0


def test_masters_are_kept_under_mixed_precision_only() -> None:
    stack = {"master_weight_bytes": 4, "mixed_parameter_bytes": 2, "mixed_gradient_bytes": 2}
    mixed = element_bytes(job(stack=stack))
    assert (mixed.parameter, mixed.gradient, mixed.optimizer) == (2, 2, 2 * 4 + 4)
    pure = element_bytes(job(stack=stack, precision=Precision.BF16))
    assert (pure.parameter, pure.gradient, pure.optimizer) == (2, 2, 2 * 2)


@pytest.mark.parametrize(
    ("schedule", "rank", "virtual_stages", "held"),
    [
        (PipelineSchedule.GPIPE, 3, 1, 16),
        (PipelineSchedule.LOOPED_BFS, 0, 2, 16),
        (PipelineSchedule.ONE_F_ONE_B, 1, 1, 3),
        # Megatron-LM's warm-up: 2 x (ranks behind - 1) + (chunks - 1) x ranks, and the one that runs
        (PipelineSchedule.INTERLEAVED, 1, 2, (2 * 2 + 4 + 1) / 2),
        (PipelineSchedule.INTERLEAVED, 0, 4, (2 * 3 + 3 * 4 + 1) / 4),
        # one chunk ahead for each rank behind, and one that waits for each before
        (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 0, 2, (3 + 4 + 1) / 2),
        (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 3, 2, (4 + 1 + 3) / 2),
        (PipelineSchedule.ZBV, 0, 2, 4),
        (PipelineSchedule.DUAL_PIPE_V, 3, 2, 4),
    ],
)
def test_micro_batches_in_flight_of_every_schedule(
    schedule: PipelineSchedule, rank: int, virtual_stages: int, held: float
) -> None:
    fields = {"pp": 4, "pp_schedule": schedule, "virtual_stages": virtual_stages}
    assert flying(row(gradient_accumulation_steps=16, **fields), rank) == held
    # never more than there are
    assert flying(row(gradient_accumulation_steps=2, **fields), rank) == min(held, 2)


def test_without_a_pipeline_one_micro_batch_is_in_flight() -> None:
    assert flying(row(gradient_accumulation_steps=16), 0) == 1
    two = row(pp=2, gradient_accumulation_steps=16, pp_schedule=PipelineSchedule.GPIPE)
    assert flying(two, 0) == 16


def test_the_worst_rank_is_told() -> None:
    # the first of two ranks holds both micro-batches of its layer, the last one
    layers = keeping(100, repeat=2, operators=(matmul(1),))
    fields = {"pp": 2, "gradient_accumulation_steps": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
    assert memory(holding(layers), **fields).activations == 2 * 100
    # a heavy head on the last outweighs that
    head = keeping(1000, unit=False, operators=(matmul(0.01),))
    assert memory(holding(layers, head), **fields).activations == 100 + 1000


def test_units_of_a_pipeline_that_reshards_are_all_gathered_when_only_the_last_is_left() -> None:
    layer = keeping(100, repeat=6, parameters=parameters(1000), operators=(matmul(1),))
    schedule = {"pp_schedule": PipelineSchedule.ONE_F_ONE_B, "gradient_accumulation_steps": 4}
    fields = {**SHARDED, "pp": 2, **schedule}
    stays = memory(holding(layer), **fields, reshard_after_forward=False)
    freed = memory(holding(layer), **fields, reshard_after_forward=True)
    # two micro-batches of three layers; those of two layers are gone at the end
    assert (stays.activations, freed.activations) == (2 * 300, 2 * 300 - 2 * 100)
    # three layers gathered, a copy of the running one's gradients, all gradients unreduced; what it reads
    # is gone when its gradients are there
    assert stays.transient == freed.transient == 4 * (3000 + 1000) + 4 * 3000 - 100


def test_the_margin_is_the_stacks_share_and_at_most_eight_percent_of_the_card() -> None:
    layer = keeping(1000)
    stack = BARE | {"memory_margin": 0.1}
    wide = holding(layer, stack=stack, device={"usable_memory_bytes": 10_000})
    assert (memory(wide).margin, memory(wide).capacity) == (100, 10_000)
    narrow = holding(layer, stack=stack, device={"usable_memory_bytes": 1000})
    assert memory(narrow).margin == 80


@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("fields", [{}, {"pp": 2, "gradient_accumulation_steps": 4}, SHARDED, {"tp": 2}])
def test_totals_alone_are_those_of_the_parts(fields: dict[str, Any], *, reshard: bool) -> None:
    layers = [
        keeping(100 + 1.5 * place, 7, name=str(place), repeat=2, unit=place > 0) for place in range(3)
    ]
    facts = holding(*layers, stack=BARE | {"fragmentation": 0.03, "context_bytes": 11})
    columns = row(reshard_after_forward=reshard, recompute=Recompute.FULL, **fields)
    table = Columns({name: np.array([value]) for name, value in columns.known().items()})
    parts, total = memory_columns(facts, table), memory_totals(facts, table)
    assert 0 <= (total - parts["total"]).item() <= 6


@pytest.mark.parametrize("fields", [SHARDED, SHARDED | {"tp": 2}, SHARDED | {"cp": 2}, {"dp_replicate": 2}])
@pytest.mark.parametrize("reshard", [True, False])
def test_a_model_of_units_alone_has_no_root_in_several_plans_either(
    fields: dict[str, Any], *, reshard: bool
) -> None:
    several = (keeping(10, 100, repeat=2, parameters=parameters(size)) for size in (UNIT, 10 * UNIT))
    facts, sizes = holding(*several), range(1, 41)
    alone = [
        memory(facts, reshard_after_forward=reshard, micro_batch_size=size, **fields).total
        for size in sizes
    ]
    columns = row(reshard_after_forward=reshard, **fields)
    table = {name: np.full(len(sizes), value) for name, value in columns.known().items()}
    found = memory_columns(facts, Columns(table | {"micro_batch_size": np.array(sizes)}))
    assert found["total"].tolist() == alone


def test_the_first_unit_of_all_finds_no_copied_gradients() -> None:
    # what a layer keeps is worth more than a copy: the first one's backward decides
    layer = keeping(10**5, 10**6, repeat=3, parameters=parameters(UNIT))
    found = memory(holding(layer), **SHARDED)
    # half of its gradients are never there with all that it reads
    assert (found.activations, found.transient - 10**6) == (3 * 10**5, 4 * (2 * UNIT + UNIT) - 4 * UNIT / 2)
    # and worth less: the second one's, which finds a copy of the first one's gradients
    light = keeping(10, 10**6, repeat=3, parameters=parameters(UNIT))
    later = memory(holding(light), **SHARDED)
    assert (later.activations, later.transient - 10**6) == (20, 4 * (2 * UNIT + UNIT) + 4 * UNIT - 10)


def adding(size: int, beside: float, **changes: Any) -> Block:
    """A block whose largest weight has as many elements, beside whose new gradient so much lies."""
    added = Parameters(trainable=size, **changes)
    return keeping(10, 100, parameters=(added,), added=added, beside_added=Saved(replicated=beside))


def test_a_later_micro_batch_makes_gradients_before_it_adds_them_to_others() -> None:
    facts = holding(adding(50, 30))
    two = {"gradient_accumulation_steps": 2}
    assert (memory(facts).transient, memory(facts, **two).transient) == (100, 4 * 50 + 30)
    # what else exists meanwhile may be more
    assert memory(holding(adding(5, 30)), **two).transient == 100
    # shares are added up as they come, and DDP has all of them beside its buckets
    plain = holding(replace(adding(50, 30), added=None))
    for fields in (SHARDED, {"dp_replicate": 2}):
        assert memory(facts, **two, **fields) == memory(plain, **two, **fields)


def test_all_micro_batches_in_flight_or_one_fewer_with_new_gradients() -> None:
    # GPipe's first backward makes gradients, its second one adds to them with one micro-batch fewer
    fields = {"pp": 2, "pp_schedule": PipelineSchedule.GPIPE, "gradient_accumulation_steps": 2}
    light = memory(holding(replace(adding(50, 30), repeat=2)), **fields)
    assert light.total == 200 + 200 + 10 + 4 * 50 + 30
    heavy = memory(
        holding(replace(adding(50, 30), repeat=2, activations=keeping(500).activations)), **fields
    )
    assert heavy.total == 200 + 2 * 500 + 100


def test_gradients_of_a_tied_weight_wait_for_each_other_and_are_summed() -> None:
    table = adding(50, 30, tie_group="table")
    head = replace(keeping(10, 100, parameters=table.parameters), name="head")
    facts = holding(replace(table, name="embedding"), head)
    # one of them is the weight's own
    assert memory(facts).transient == 2 * 4 * 50 + 30
    assert memory(facts, gradient_accumulation_steps=2).transient == 3 * 4 * 50 + 30
    # each stage has its own
    piped = {"pp": 2, "pp_schedule": PipelineSchedule.GPIPE, "gradient_accumulation_steps": 2}
    assert memory(facts, **piped).total == 200 + 200 + 10 + 4 * 50 + 30


@pytest.mark.parametrize(
    ("meanwhile", "freed", "lacking"),
    [
        # at the first of these moments a quarter of the gradients is there
        (0.5, 10**5, 0.75 * 4 * UNIT),
        # half of them, and little is gone
        (0.5, 500, 0.5 * 4 * UNIT + 500),
        # all of them, and more is there than before
        (1.0, -200, -200),
    ],
)
def test_a_unit_may_hold_most_halfway_through_its_backward(
    meanwhile: float, freed: float, lacking: float
) -> None:
    halfway = Halfway(meanwhile=meanwhile, freed=Saved(replicated=freed))
    layer = keeping(10**5, 10**6, repeat=3, parameters=parameters(UNIT), meanwhile=0.25, halfway=halfway)
    found = memory(holding(layer), **SHARDED)
    assert found.transient - 10**6 == 4 * (2 * UNIT + UNIT) - lacking


def test_a_unit_may_hold_most_at_any_of_its_moments() -> None:
    def transient(*busy: Busy) -> float:
        layer = keeping(10**7, 10**6, repeat=3, parameters=parameters(UNIT), meanwhile=0.25, busy=busy)
        return memory(holding(layer), **SHARDED).transient

    few, many = (Busy(working=Saved(replicated=made), meanwhile=0.5) for made in (10, 3 * 10**6))
    gathered = 4 * (2 * UNIT + UNIT)
    # as much as of its only moment, or of the one that holds more with its gradients
    assert transient(few) == gathered + 10 - 0.5 * 4 * UNIT
    assert transient(few, many) == gathered + 3 * 10**6 - 0.5 * 4 * UNIT
    later = Busy(working=Saved(replicated=3 * 10**6 - UNIT), meanwhile=0.75)
    assert transient(many, later) == gathered + 3 * 10**6 - UNIT - 0.25 * 4 * UNIT
    # with more beside it that has less made
    early = Busy(working=Saved(replicated=3 * 10**6 + UNIT), meanwhile=0.0)
    assert transient(many, early) == gathered + 3 * 10**6 - 0.5 * 4 * UNIT


def test_dropout_leaves_sequences_whole() -> None:
    kept = Saved(sequence=80)
    layer = block(activations=Activations(none=kept, attention=kept, selective=kept, full=kept))
    facts = holding(layer)
    fields = {"tp": 4, "sequence_parallel": True}
    assert memory(facts, **fields).activations == 20
    drops = replace(facts, model=replace(facts.model, drops=True))
    assert memory(drops, **fields).activations == 80
    # Megatron draws for each share
    fused = holding(layer, stack=BARE | {"kernels": Kernels.FUSED})
    assert memory(replace(fused, model=drops.model), **fields).activations == 20
