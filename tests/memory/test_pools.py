"""What the allocator holds and nothing uses, by hand: a table of 100, layers of 1,000 and a head of 200."""

from __future__ import annotations

from typing import Any

import pytest

from memory.test_parts import ROOT, SHARDED, UNIT, chain, holding, keeping, memory, parameters
from parastrat.hardware import DeviceType
from parastrat.model import Split
from parastrat.plan import PipelineSchedule, Shard
from parastrat.workload import Precision

CPU: dict[str, Any] = {"device": {"type": DeviceType.CPU}}


@pytest.mark.parametrize(("precision", "size"), [(Precision.FP32, 4), (Precision.BF16_MIXED, 2)])
def test_two_units_are_on_their_way(precision: Precision, size: int) -> None:
    # the table's backward comes last, when all gradients but the root's are reduced, whose memory waits
    found = memory(chain("table", precision=precision), **SHARDED)
    assert found.overhead == size * 2 * UNIT + 4 * ROOT / 2


def test_a_root_that_is_larger_goes_alone() -> None:
    layer = keeping(0, 10**6, parameters=parameters(UNIT))
    head = keeping(0, parameters=parameters(5 * UNIT), unit=False)
    table = keeping(0, 2 * 10**6, unit=False)
    # and its gradients come last
    assert memory(holding(table, layer, head), **SHARDED).overhead == 4 * 5 * UNIT + 4 * 5 * UNIT / 2


def test_a_rank_gathers_only_units_that_it_has() -> None:
    small = keeping(0, 10**6, parameters=parameters(10))
    large = keeping(0, 0, parameters=parameters(UNIT))
    fields = {**SHARDED, "pp": 2, "pp_schedule": PipelineSchedule.GPIPE}
    first = memory(holding(small, large), **fields)
    # gradients of the step before, a half of 10 in fp32, and the buffers
    assert first.transient > 10**6
    assert first.overhead == 4 * 2 * 10 + 4 * 10 / 2


def test_what_the_computing_stream_gathers_leaves_nothing_behind() -> None:
    stack = {"fragmentation": 0.0, "context_bytes": 0, "step_constant_s": 1.0, "gathers_in_graph": True}
    assert memory(chain("table", stack=stack), **SHARDED).overhead == 0


@pytest.mark.parametrize(
    "fields",
    [{}, {"dp_replicate": 2}, {"dp_shard": 2, "shard": Shard.GRADIENTS}, {"shard": Shard.PARAMETERS}],
)
def test_nothing_is_on_its_way_that_is_not_sharded(fields: dict[str, Any]) -> None:
    assert memory(chain("layer"), **fields).overhead == 0


def test_tensor_parallel_ranks_gather_their_share() -> None:

    layer = keeping(0, 10**6, parameters=parameters(UNIT, Split.TENSOR), repeat=2)
    table = keeping(0, 2 * 10**6, unit=False)
    assert memory(holding(table, layer), **SHARDED, tp=4).overhead == 4 * 2 * UNIT / 4


def test_memory_of_the_last_steps_gradients_is_kept_for_the_next() -> None:
    # at the loss there are no gradients yet, and half of 3,300 in fp32 waits for them
    at_loss = memory(chain("head"), **SHARDED)
    assert (at_loss.gradients, at_loss.overhead) == (0, 4 * 2 * UNIT + 4 * (ROOT + 3 * UNIT) / 2)
    later = memory(chain("layer"), **SHARDED)
    # the first layer's are there when the second one runs
    waiting = 4 * (ROOT + 2 * UNIT) / 2
    assert (later.gradients, later.overhead) == (4 * UNIT / 2, 4 * 2 * UNIT + waiting)
    # a micro-batch before has made them
    second = memory(chain("head"), **SHARDED, gradient_accumulation_steps=2)
    assert (second.gradients, second.overhead) == (4 * (ROOT + 3 * UNIT) / 2, 4 * 2 * UNIT)


def test_processors_give_back_what_is_freed() -> None:
    for busy in ("table", "layer", "head"):
        assert memory(chain(busy, **CPU), **SHARDED).overhead == 0


@pytest.mark.parametrize(
    ("head", "most"),
    [
        # two layers, or the last one and the head
        (UNIT // 2, 2 * UNIT),
        (3 * UNIT, 3 * UNIT + UNIT),
    ],
)
def test_of_ends_that_are_units_two_blocks_that_follow_each_other_are_on_their_way(
    head: int, most: int
) -> None:
    # the table and the head do not
    blocks = (
        keeping(0, 10**6 * (repeat > 1), parameters=parameters(count), repeat=repeat, unit=unit)
        for count, repeat, unit in ((UNIT - 1, 1, False), (UNIT, 2, True), (head, 1, False))
    )
    stack = {"fragmentation": 0.0, "context_bytes": 0, "ends_apart": True}
    facts = holding(*blocks, stack=stack)
    # all gradients are there in a second micro-batch
    assert memory(facts, **SHARDED, gradient_accumulation_steps=2).overhead == 4 * most


@pytest.mark.parametrize(("head", "largest"), [(UNIT // 2, UNIT), (3 * UNIT, 3 * UNIT)])
def test_fsdp1_casts_gradients_in_a_stream_of_its_own(head: int, largest: int) -> None:
    layer = keeping(0, 0, parameters=parameters(UNIT), repeat=2)
    last = keeping(0, 10**6, parameters=parameters(head), unit=False)
    plain, casting = (
        holding(
            layer,
            last,
            precision=Precision.BF16_MIXED,
            stack={"fragmentation": 0.0, "context_bytes": 0, "casts_gradients_aside": casts},
        )
        for casts in (False, True)
    )
    more = memory(casting, **SHARDED).overhead - memory(plain, **SHARDED).overhead
    assert more == 4 * largest
    assert memory(casting).overhead == memory(plain).overhead


@pytest.mark.parametrize(
    ("precision", "stack", "copy"),
    [
        (Precision.BF16_MIXED, {}, 4 * UNIT),
        (Precision.FP16_MIXED, {}, 4 * UNIT),
        # whose gradients are not kept in fp32
        (Precision.FP16_MIXED, {"fp16_gradient_bytes": 2}, 0),
        (Precision.FP32, {}, 0),
        (Precision.BF16_MIXED, {"copies_gradients": False}, 0),
    ],
)
def test_a_stack_may_copy_gradients_to_add_them(
    precision: Precision, stack: dict[str, Any], copy: int
) -> None:
    weight, less = parameters(UNIT, Split.TENSOR), parameters(UNIT - 1)
    layer = keeping(0, 10**6, parameters=weight + less, added=weight[0], repeat=2)
    head = keeping(0, parameters=less, added=less[0], unit=False)
    copying = {"fragmentation": 0.0, "context_bytes": 0, "copies_gradients": True} | stack
    facts = holding(layer, head, stack=copying, precision=precision)
    assert memory(facts, gradient_accumulation_steps=2).overhead == copy
    # of the largest share
    assert memory(facts, tp=2, gradient_accumulation_steps=2).overhead == min(copy, 4 * (UNIT - 1))
