"""Dry runs of small plans, counted by hand, and of Llama beside the closed form."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from runtime.dry_run.models import LAYERS, WIDE_LAYERS, WIDE_WIDTH, WIDTH, WORDS
from torch.nn import functional
from versions import reduces_unused

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.dry_run import DryRun
from parastrat.errors import ModelError, ParastratError, WrapError
from parastrat.plan import Backend, Compile, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.dry_run import alone, ranks_to_run, run_kinds, run_on_fakes
from parastrat.runtime.dry_run import rank as rank_module
from parastrat.runtime.dry_run.rank import _caveats
from parastrat.runtime.tensor_parallel import computed
from parastrat.runtime.tensor_parallel.layout import Left
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

pytestmark = pytest.mark.slow

HERE = Path(__file__).with_name("models.py")
ALL = 2 * WORDS * WIDTH + LAYERS * WIDTH**2
WIDE = 2 * WORDS * WIDE_WIDTH + WIDE_LAYERS * WIDE_WIDTH**2
ROOT, UNIT = 2 * WORDS * WIDTH, WIDTH**2


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "mesh": Mesh(dp_shard=4),
        "shard": Shard.PARAMETERS,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 1,
        "precision": Precision.FP32,
        "backend": Backend.GLOO,
    }
    return Plan(**(fields | changes))


def workload(own: Plan, length: int = 8, optimizer: Optimizer = Optimizer.ADAMW) -> Workload:
    return Workload(
        global_batch_size=own.global_batch_size,
        sequence_length=length,
        optimizer=optimizer,
        precision=own.precision,
    )


def dried(name: str = "Chain", **changes: Any) -> DryRun:
    own = plan(**changes)
    return run_on_fakes(f"{HERE}:{name}", own, workload(own))


def sent(found: DryRun) -> dict[tuple[str, int], tuple[int, int]]:
    return {(each.name, each.ranks): (each.count, each.bytes) for each in found.traffic}


def test_a_rank_holds_its_share_and_gathers_units() -> None:
    found = dried()
    assert found.parameters == 4 * ALL / 4
    # forward gathers all, backward again but the last layer, whose weights were not freed, and the root
    gathers = 1 + LAYERS + LAYERS
    assert sent(found)["allgather_base", 4] == (gathers, 4 * (ROOT + 2 * LAYERS * UNIT))
    assert sent(found)["reduce_scatter_base", 4] == (1 + LAYERS, 4 * ALL)
    # share, gradients and two states while AdamW steps, and its temporary copy of all
    assert found.optimizer_step == pytest.approx(5 * 4 * ALL / 4, abs=1000)
    assert found.forward_backward > found.parameters + 4 * 2 * ALL / 4


def test_parameters_that_stay_gathered_are_gathered_once() -> None:
    kept, freed = dried(reshard_after_forward=False), dried()
    assert sent(kept)["allgather_base", 4] == (1 + LAYERS, 4 * ALL)
    assert kept.forward_backward > freed.forward_backward


def test_replicas_add_up_shards() -> None:
    found = sent(dried(mesh=Mesh(dp_replicate=2, dp_shard=4)))
    assert found["allreduce", 2] == (1 + LAYERS, 4 * ALL / 4)
    assert found["reduce_scatter_base", 4] == (1 + LAYERS, 4 * ALL)


def test_one_device_sends_nothing_and_holds_all() -> None:
    found = dried(mesh=Mesh(), shard=Shard.NONE)
    assert found.traffic == ()
    assert found.parameters == 4 * ALL
    assert found.micro_batches == 1


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(dp_shard=4)])
def test_parameters_without_gradients_have_no_states(mesh: Mesh) -> None:
    fields: dict[str, Any] = {"mesh": mesh, "shard": Shard.PARAMETERS if mesh.dp_shard > 1 else Shard.NONE}
    idle, used = dried("Idle", **fields), dried(**fields)
    spare = 4 * UNIT / mesh.dp_shard
    assert idle.parameters - used.parameters == spare
    assert idle.optimizer_step - used.optimizer_step == spare


def test_replicas_reduce_buckets_that_gradients_are_views_of() -> None:
    found = dried("Wide", mesh=Mesh(dp_replicate=4), shard=Shard.NONE)
    assert found.parameters == 4 * WIDE
    # a bucket is closed by the parameter that fills it: the first takes 1 MiB, the next ones 25 MiB
    assert sent(found) == {("allreduce", 4): (2, 4 * WIDE)}
    # parameters, buckets and two states, and AdamW's temporary copy: gradients take nothing of their own
    assert found.optimizer_step == pytest.approx(5 * 4 * WIDE, abs=1000)


def test_replicas_accumulate_beside_their_buckets() -> None:
    fields: dict[str, Any] = {"mesh": Mesh(dp_replicate=4), "shard": Shard.NONE}
    once, more = (dried(**fields, gradient_accumulation_steps=steps) for steps in (1, 2))
    # without reduction DDP leaves gradients where autograd puts them
    assert more.forward_backward >= once.forward_backward + 4 * ALL
    assert sent(more) == sent(once)


def test_each_micro_batch_reduces_and_only_the_second_repeats() -> None:
    once, more = dried(), dried(gradient_accumulation_steps=5)
    assert more.micro_batches == 2
    name = "reduce_scatter_base", 4
    assert sent(more)[name] == tuple(2 * each for each in sent(once)[name])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"recompute": Recompute.FULL},
        {"mesh": Mesh(dp_replicate=4, dp_shard=4)},
        {"mesh": Mesh(dp_shard=4, cp=4)},
        {"mesh": Mesh(dp_shard=8, cp=2), "recompute": Recompute.SELECTIVE},
    ],
    ids=["fsdp2", "full recompute", "hsdp", "cp", "cp, selective recompute"],
)
def test_llama_is_as_the_closed_form_says(changes: dict[str, Any]) -> None:
    held_against_closed_form(changes, 2048)


@pytest.mark.parametrize("precision", [Precision.BF16_MIXED, Precision.FP32])
def test_gradients_of_a_tied_weight_meet_at_the_end(precision: Precision) -> None:
    # so few tokens make no logits that take more
    held_against_closed_form({"precision": precision}, 128)


def held_against_closed_form(changes: dict[str, Any], length: int) -> None:
    own = plan(mesh=Mesh(dp_shard=16), precision=Precision.BF16_MIXED, micro_batch_size=1)
    own = replace(own, **changes)
    source, stack = load_source("llama-3.2-1b"), load_stack("torch")
    assert source is not None
    job = Facts(
        model=source.at(length, own.precision, stack.kernels),
        hardware=load_hardware("dgx-h100:2"),
        workload=workload(own, length),
        stack=stack,
    )
    memory = assess(job, own).estimate.memory
    found = run_on_fakes("llama-3.2-1b", own, job.workload)
    assert memory.total - memory.overhead == pytest.approx(found.peak, rel=0.03)


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        (Mesh(tp=4, ep=2), "does not apply ep 2 over a part of tp 4 without data ranks yet"),
        (Mesh(dp_shard=4, tp=3, ep=2), "does not apply ep 2 beside tp 3, of which none divides the other"),
    ],
)
def test_what_nobody_wraps_is_refused(mesh: Mesh, said: str) -> None:
    with pytest.raises(WrapError) as refused:
        dried(mesh=mesh)
    assert said in refused.value.message


def test_what_a_stage_fails_with_is_refused() -> None:
    # where a stage keeps step with others, its failure comes when the step is through
    pipeline = SimpleNamespace(step=lambda *_: ZeroDivisionError("in a stage"))
    wrapping: Any = SimpleNamespace(plan=plan(mesh=Mesh(pp=2)), pipeline=pipeline)
    meter: Any = SimpleNamespace(live=0, peak=0)
    with patch.object(rank_module, "completing", nullcontext), pytest.raises(ZeroDivisionError):
        rank_module._micro_batches(torch.nn.Identity(), wrapping, None, meter)


def test_blocks_that_stay_whole_alike_are_told_once() -> None:
    left = [
        Left(kind="mlp", reason=f"10 features of layers.{block}.up do not divide") for block in range(4)
    ]
    wrapping: Any = SimpleNamespace(layout=SimpleNamespace(left=(*left, Left(kind="loss", reason="whole"))))
    _, first, loss = _caveats(wrapping, plan())
    assert first == "whole on every tp rank: mlp: 10 features of layers.0.up do not divide; 3 more like it"
    assert loss == "whole on every tp rank: loss: whole"


def test_of_compiled_plans_the_eager_wrapping_is_verified() -> None:
    compiled, eager = dried(compile=Compile.BLOCK), dried()
    assert compiled.peak == eager.peak
    assert set(compiled.traffic) == set(eager.traffic)
    (told,) = compiled.caveats
    assert told.startswith("the plan's blocks are not compiled here: verified are the eager wrapping")
    assert eager.caveats == ()


def test_a_pipeline_has_a_rank_of_each_kind() -> None:
    source = load_source("llama-3.1-8b")
    assert source is not None
    model = source.at(2048, Precision.FP32, load_stack("torch").kernels)
    assert ranks_to_run(model, plan()) == (0,)
    # those between hold neither the embedding nor the head
    found = ranks_to_run(model, plan(mesh=Mesh(pp=4, dp_shard=2)))
    assert found[0] == 0
    assert found[-1] == 6
    assert set(found) <= {0, 2, 4, 6}
    assert len(found) > 2


def test_each_micro_batch_of_a_pipeline_has_buffers_of_its_own() -> None:
    fields: dict[str, Any] = {"mesh": Mesh(pp=2), "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
    few, many = (dried(**fields, shard=Shard.NONE, gradient_accumulation_steps=steps) for steps in (3, 12))
    assert (few.micro_batches, many.micro_batches) == (3, 3)
    assert few.traffic == many.traffic
    # the first rank receives gradients alone: 2 samples of 8 tokens
    buffer = 2 * 8 * WIDTH * 4
    assert many.forward_backward - few.forward_backward == 9 * buffer
    assert many.optimizer_step - few.optimizer_step == 9 * buffer


def test_ranks_that_run_together_find_what_each_finds_alone() -> None:
    own = plan(
        mesh=Mesh(pp=2, dp_shard=2),
        pp_schedule=PipelineSchedule.ONE_F_ONE_B,
        reshard_after_forward=False,
        gradient_accumulation_steps=4,
    )
    together = run_kinds(f"{HERE}:Chain", own, workload(own), (0, 2))
    for rank, found in zip((0, 2), together, strict=True):
        alone = run_on_fakes(f"{HERE}:Chain", own, workload(own), rank)
        assert replace(found, seconds=0, traffic=()) == replace(alone, seconds=0, traffic=())
        assert set(found.traffic) == set(alone.traffic)


def test_adafactors_states_are_a_row_and_a_column_of_each_weight() -> None:
    own = plan(mesh=Mesh(dp_replicate=2), shard=Shard.NONE)
    found, without = (
        run_on_fakes(f"{HERE}:Chain", own, workload(own, optimizer=optimizer))
        for optimizer in (Optimizer.ADAFACTOR, Optimizer.SGD)
    )
    # beside them each weight's number of steps
    states = 4 * (2 * (WORDS + WIDTH) + LAYERS * 2 * WIDTH) + 4 * (2 + LAYERS)
    assert found.forward_backward - without.forward_backward == states
    # it takes one weight after the other, and holds the last update until the next is made
    updates = 4 * (WORDS * WIDTH + UNIT)
    assert found.optimizer_step == pytest.approx(2 * 4 * ALL + states + updates, abs=1000)


def test_optimizers_without_torchs_own_are_refused() -> None:
    own = plan()
    with pytest.raises(WrapError, match="do not know the optimizer muon"):
        run_on_fakes(f"{HERE}:Chain", own, workload(own, optimizer=Optimizer.MUON))


@reduces_unused
def test_a_forward_that_needs_values_is_told_as_such() -> None:
    with pytest.raises(ParastratError, match="depends on values"):
        dried("Looks")


@pytest.mark.parametrize("ref", ["grok-1", "bert-large", "resnet-50"])
def test_presets_of_other_forms_have_to_be_named_as_code(ref: str) -> None:
    own = plan()
    with pytest.raises(ModelError, match="of no form that transformers builds"):
        run_on_fakes(ref, own, workload(own))


def test_fused_projections_are_divided_as_they_were_proven_on_a_small_copy() -> None:
    own = plan(mesh=Mesh(tp=2), shard=Shard.NONE, micro_batch_size=1)
    found = run_on_fakes("gpt2", own, workload(own, 64))
    source = load_source("gpt2")
    assert source is not None
    whole = source.at(64, Precision.FP32, load_stack("torch").kernels).parameters
    # layers are halved, positions and words are not: there is an odd number of these
    tables = (50257 + 1024) * 768
    assert found.parameters == pytest.approx(4 * (tables + (whole - tables) / 2), rel=0.01)


def test_attention_that_is_computed_again_is_seen() -> None:
    own = plan(recompute=Recompute.ATTENTION, precision=Precision.BF16_MIXED, micro_batch_size=1)
    kept = replace(own, recompute=Recompute.NONE)
    again, once = (run_on_fakes("llama-3.2-1b", each, workload(each, 256)) for each in (own, kept))
    # of each layer and head a row's statistics, in fp32
    assert once.after_forward is not None
    assert again.after_forward is not None
    assert once.after_forward - again.after_forward == pytest.approx(16 * 32 * 256 * 4, abs=1000)


def test_autocast_casts_what_attention_reads() -> None:
    own = plan(mesh=Mesh(), shard=Shard.NONE, precision=Precision.BF16_MIXED, micro_batch_size=1)
    source, stack = load_source("llama-3.2-1b"), load_stack("torch")
    assert source is not None
    job = Facts(
        model=source.at(2048, own.precision, stack.kernels),
        hardware=load_hardware("dgx-h100:1"),
        workload=workload(own, 2048, Optimizer.SGD),
        stack=stack,
    )
    memory = assess(job, own).estimate.memory
    found = run_on_fakes("llama-3.2-1b", own, job.workload)
    assert memory.total - memory.overhead == pytest.approx(found.peak, rel=0.002)


def test_a_pipelines_buffers_are_as_many_as_its_micro_batches() -> None:
    fields: dict[str, Any] = {
        "mesh": Mesh(pp=2),
        "shard": Shard.NONE,
        "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
    }
    few, more = (dried("Fed", **fields, gradient_accumulation_steps=steps) for steps in (4, 10))
    assert few.micro_batches == more.micro_batches == 3
    # gradients of two samples of eight words, for each micro-batch
    assert more.optimizer_step - few.optimizer_step == 6 * 2 * 8 * WIDTH * 4


@pytest.mark.parametrize(("alike", "each"), [(None, 32), (SimpleNamespace(size=lambda: 8), 4)])
def test_ranks_that_are_given_the_same_tokens_send_a_share_to_experts(alike: Any, each: int) -> None:
    mesh = SimpleNamespace(size=lambda: 2, get_group=lambda: None)
    holders: Any = SimpleNamespace(mesh=mesh, alike=alike)
    with patch.object(alone.dist, "all_to_all_single"):
        assert alone._evenly(torch.zeros(64), holders) == ([each] * 2, [each] * 2)


def test_a_layout_under_which_attention_goes_over_other_positions_is_not_taken() -> None:
    def results(positions: int, _task: object) -> object:
        query = torch.zeros(1, 2, positions, 4)
        functional.scaled_dot_product_attention(query, query, value=query)
        return object()

    shapes = alone._Shapes(results)
    whole, folded = (
        shapes.results(8, computed.Task(inputs=None)),
        shapes.results(4, computed.Task(inputs=None)),
    )
    assert shapes.compared(whole, shapes.results(8, computed.Task(inputs=None))) == {}
    assert shapes.compared(whole, folded) == {"attention": 1.0}
    assert shapes.compared(whole, object()) == {}
