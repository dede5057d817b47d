"""Heads whose loss makes the logits of some tokens at a time, in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search.test_find_plan import facts

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.chunked_loss import has_whole_logits, in_chunks
from parastrat.errors import ModelError
from parastrat.plan import Backend, Mesh, Plan, Recompute, Shard
from parastrat.profiles import load_stack
from parastrat.sources import load_source
from parastrat.workload import Precision

PLAN = Plan(
    mesh=Mesh(dp_shard=8),
    shard=Shard.PARAMETERS,
    micro_batch_size=2,
    gradient_accumulation_steps=4,
    precision=Precision.BF16_MIXED,
    recompute=Recompute.FULL,
    backend=Backend.NCCL,
)


def job(chunks: int) -> Facts:
    whole = facts("llama-3.1-8b", "dgx-h100:1", 64, 8192)
    return replace(
        whole,
        model=in_chunks(whole.model, chunks),
        workload=replace(whole.workload, loss_chunks=chunks),
    )


def test_all_at_once_is_the_model_itself() -> None:
    model = job(1).model
    assert in_chunks(model, 1) is model
    # what is known of a model is known of the same object alone
    assert in_chunks(model, 8) is in_chunks(model, 8)


def test_chunks_leave_parameters_and_flops() -> None:
    whole, chunked = job(1).model, job(8).model
    assert chunked.flops == pytest.approx(whole.flops)
    assert (chunked.parameters, chunked.blocks[:-1]) == (whole.parameters, whole.blocks[:-1])


def test_logits_take_an_eighth_and_the_gradient_of_the_head_its_place() -> None:
    whole, chunked = (assess(job(chunks), PLAN).estimate.memory.total for chunks in (1, 8))
    logits = 2 * 8192 * 128_256
    # whole: bf16, and three tensors in fp32
    assert whole - chunked > 0.8 * 14 * logits * 7 / 8
    # with more of them layers hold most
    assert assess(job(64), PLAN).estimate.memory.total == chunked


def test_the_head_runs_forward_twice() -> None:
    whole, chunked = (assess(job(chunks), PLAN).estimate for chunks in (1, 8))
    more = chunked.time.step / whole.time.step - 1
    head = 2 * 8192 * 128_256 * 4096
    assert 0.5 * head / (3 * job(1).model.flops) < more < 3 * head / (3 * job(1).model.flops)
    # what is computed again is no work of the model
    assert chunked.mfu is not None
    assert whole.mfu is not None
    assert chunked.mfu == pytest.approx(whole.mfu / (1 + more))


@pytest.mark.parametrize("name", ["bert-large", "t5-3b", "resnet-50", "nemotron-3-nano"])
def test_what_has_no_such_logits_is_refused(name: str) -> None:
    source = load_source(name)
    assert source is not None
    model = source.at(512 if source.has_tokens else None, Precision.BF16_MIXED, load_stack("torch").kernels)
    if name == "nemotron-3-nano":
        assert has_whole_logits(model)
        return
    with pytest.raises(ModelError, match="a loss in chunks"):
        in_chunks(model, 8)
    assert not has_whole_logits(model)


def test_chunks_are_not_divided_again() -> None:
    with pytest.raises(ModelError, match="a loss in chunks"):
        in_chunks(job(8).model, 2)
