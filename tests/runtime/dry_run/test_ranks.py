"""Dry runs of small plans, counted by hand, and of Llama beside the closed form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runtime.dry_run.models import LAYERS, WIDE_LAYERS, WIDE_WIDTH, WIDTH, WORDS

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.dry_run import DryRun
from parastrat.errors import ModelError, ParastratError, WrapError
from parastrat.plan import Backend, Compile, Mesh, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.dry_run import ranks_to_run, run_on_fakes
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
    [{}, {"recompute": Recompute.FULL}, {"mesh": Mesh(dp_replicate=4, dp_shard=4)}],
    ids=["fsdp2", "full recompute", "hsdp"],
)
def test_llama_is_as_the_closed_form_says(changes: dict[str, Any]) -> None:
    own = plan(mesh=Mesh(dp_shard=16), precision=Precision.BF16_MIXED, micro_batch_size=1)
    own = replace(own, **changes)
    source, stack = load_source("llama-3.2-1b"), load_stack("torch")
    assert source is not None
    job = Facts(
        model=source.at(2048, own.precision, stack.kernels),
        hardware=load_hardware("dgx-h100:2"),
        workload=workload(own, 2048),
        stack=stack,
    )
    memory = assess(job, own).estimate.memory
    found = run_on_fakes("llama-3.2-1b", own, job.workload)
    assert memory.total - memory.overhead == pytest.approx(found.peak, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compile": Compile.BLOCK}, "does not compile"),
    ],
)
def test_what_it_does_not_know_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WrapError) as refused:
        dried(**changes)
    assert said in refused.value.message


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


def test_optimizers_without_torchs_own_are_refused() -> None:
    own = plan()
    with pytest.raises(WrapError, match="do not know the optimizer muon"):
        run_on_fakes(f"{HERE}:Chain", own, workload(own, optimizer=Optimizer.MUON))


def test_a_forward_that_needs_values_is_told_as_such() -> None:
    with pytest.raises(ParastratError, match="depends on values"):
        dried("Looks")


@pytest.mark.parametrize("ref", ["gpt2", "mixtral-8x7b", "resnet-50"])
def test_presets_that_are_no_llama_have_to_be_named_as_code(ref: str) -> None:
    own = plan()
    with pytest.raises(ModelError, match="is no Llama"):
        run_on_fakes(ref, own, workload(own))
