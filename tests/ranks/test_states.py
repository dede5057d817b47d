"""Bytes of a parameter's element in each place, by optimizer and format."""

from __future__ import annotations

from dataclasses import replace

import pytest
from jobs import block, job

from parastrat.case import Facts
from parastrat.model import Parameters
from parastrat.plan import Offload
from parastrat.ranks.states import context_bytes, element_bytes, least_bytes
from parastrat.workload import Optimizer, Precision

#: of a stack that keeps masters and gradients in fp32
MIXED = {"mixed_parameter_bytes": 2, "mixed_gradient_bytes": 4, "master_weight_bytes": 4}


def facts(optimizer: Optimizer, precision: Precision, hidden: int | None = 8) -> Facts:
    made = job(block(), optimizer=optimizer, precision=precision, stack=MIXED)
    return replace(made, model=replace(made.model, hidden=hidden))


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (Optimizer.ADAMW, 8),
        (Optimizer.SGD, 0),
        (Optimizer.SGD_MOMENTUM, 4),
        # a row and a column of a square of the width
        (Optimizer.ADAFACTOR, 2 * 4 / 8),
        # a byte each, and a scale of fp32 for 256 of them
        (Optimizer.ADAMW_8BIT, 2 * (1 + 4 / 256)),
        # as of AdamW, of which matrices have one less
        (Optimizer.MUON, 8),
    ],
)
def test_what_each_optimizer_keeps(optimizer: Optimizer, states: float) -> None:
    plain = element_bytes(facts(optimizer, Precision.FP32))
    assert (plain.parameter, plain.gradient, plain.optimizer, plain.reduce) == (4, 4, states, 4)
    assert plain.step == (4 if optimizer in {Optimizer.ADAMW, Optimizer.MUON} else 0)
    assert plain.spared == (4 if optimizer is Optimizer.MUON else 0)
    mixed = element_bytes(facts(optimizer, Precision.BF16_MIXED))
    assert (mixed.parameter, mixed.gradient, mixed.optimizer, mixed.reduce) == (2, 4, states + 4, 4)


def test_fp16_may_accumulate_in_another_format() -> None:
    stack = MIXED | {"mixed_gradient_bytes": 6, "fp16_gradient_bytes": 2}
    made = {
        precision: element_bytes(job(block(), precision=precision, stack=stack)).gradient
        for precision in (Precision.BF16_MIXED, Precision.FP16_MIXED, Precision.FP32)
    }
    assert made == {Precision.BF16_MIXED: 6, Precision.FP16_MIXED: 2, Precision.FP32: 4}
    same = job(block(), precision=Precision.FP16_MIXED, stack=MIXED)
    assert element_bytes(same).gradient == 4


def test_fp16_may_have_buckets_of_its_own() -> None:
    stack = MIXED | {"context_bytes": 3, "fp16_context_bytes": 5}
    taken = {
        precision: context_bytes(job(block(), precision=precision, stack=stack))
        for precision in (Precision.BF16_MIXED, Precision.FP16_MIXED, Precision.FP32)
    }
    assert taken == {Precision.BF16_MIXED: 3, Precision.FP16_MIXED: 5, Precision.FP32: 3}
    same = job(block(), precision=Precision.FP16_MIXED, stack=MIXED | {"context_bytes": 3})
    assert context_bytes(same) == 3


def test_a_model_of_no_width_is_taken_for_one_of_1024() -> None:
    assert element_bytes(facts(Optimizer.ADAFACTOR, Precision.FP32, None)).optimizer == 2 * 4 / 1024


def test_short_weights_keep_short_states() -> None:
    short = element_bytes(facts(Optimizer.ADAMW, Precision.BF16))
    assert (short.parameter, short.gradient, short.optimizer, short.compute, short.reduce) == (
        2,
        2,
        4,
        2,
        4,
    )
    # FSDP1 has no format for the reduction where nobody asks for one
    aside = job(block(), precision=Precision.BF16, stack={"casts_gradients_aside": True})
    assert element_bytes(aside).reduce == 2
    muon = element_bytes(facts(Optimizer.MUON, Precision.BF16))
    assert (muon.optimizer, muon.spared) == (4, 2)


def test_autocast_keeps_copies_of_fp32_weights_alone() -> None:
    assert element_bytes(facts(Optimizer.ADAMW, Precision.BF16_MIXED)).cast == 0
    made = job(block(), precision=Precision.BF16_MIXED, stack=MIXED | {"mixed_parameter_bytes": 4})
    assert element_bytes(made).cast == 2


def test_the_least_counts_ties_once_and_frozen_weights_without_gradients() -> None:
    tied = Parameters(trainable=100, tie_group="table")
    layer = block(parameters=(Parameters(trainable=10, frozen=4),), repeat=3)
    job_of = job(
        block(name="embedding", parameters=(tied,)),
        layer,
        block(name="head", parameters=(tied,)),
        optimizer=Optimizer.SGD_MOMENTUM,
        precision=Precision.FP32,
    )
    trainable, frozen = 100 + 3 * 10, 3 * 4
    ranks, context = job_of.hardware.world_size, job_of.stack.context_bytes
    weights = 4 * (trainable + frozen) + 4 * trainable
    assert least_bytes(job_of, Offload.NONE) == (weights + 4 * trainable) / ranks + context
    assert least_bytes(job_of, Offload.OPTIMIZER) == weights / ranks + context
