"""Measured runs as facts and plans."""

from __future__ import annotations

from typing import Any

import pytest
from measured.rows import run

from parastrat.measured.jobs import job_of
from parastrat.measured.models import has_experts
from parastrat.measured.skipped import CannotPredictError
from parastrat.model import OperatorKind
from parastrat.plan import Compile, Mesh, PipelineSchedule, Recompute, Shard
from parastrat.profiles import load_stack
from parastrat.saved import Saved
from parastrat.stack import Attention, Kernels
from parastrat.stage_load import StageLoad
from parastrat.workload import Optimizer, Precision


def test_a_run_is_planned_as_it_states() -> None:
    job = job_of(run(vpp=3, async_tp=True, compile="block"))
    plan, facts = job.plan, job.facts
    assert plan.mesh == Mesh(dp_shard=8)
    assert (plan.micro_batch_size, plan.gradient_accumulation_steps) == (2, 2)
    assert (plan.shard, plan.recompute, plan.compile) == (Shard.PARAMETERS, Recompute.FULL, Compile.BLOCK)
    assert (plan.precision, plan.async_tp) == (Precision.BF16_MIXED, True)
    # chunks are of pipelines
    assert (plan.pp_schedule, plan.virtual_stages) == (None, 1)
    assert (facts.model.layers, facts.model.parameters) == (32, 8_030_261_248)
    assert (facts.hardware.world_size, facts.hardware.device.name) == (8, "h100-sxm5")
    assert facts.workload.optimizer is Optimizer.ADAMW
    assert facts.workload.assumed == ("optimizer",)


@pytest.mark.parametrize(
    ("stated", "mesh", "shard"),
    [
        ({"fsdp": "none", "gpus": 16}, Mesh(dp_replicate=16), Shard.NONE),
        ({"fsdp": "zero1", "tp": 4}, Mesh(dp_shard=2, tp=4), Shard.OPTIMIZER),
        ({"fsdp": "zero2", "stack": "megatron-core"}, Mesh(dp_shard=8), Shard.GRADIENTS),
        (
            {"fsdp": "hsdp", "gpus": 32, "global_batch": 64},
            Mesh(dp_replicate=4, dp_shard=8),
            Shard.PARAMETERS,
        ),
        ({"cp": 2, "tp": 2, "pp": 2}, Mesh(pp=2, dp_shard=1, cp=2, tp=2), Shard.PARAMETERS),
    ],
)
def test_ways_to_shard(stated: dict[str, Any], mesh: Mesh, shard: Shard) -> None:
    plan = job_of(run(**stated)).plan
    assert (plan.mesh, plan.shard) == (mesh, shard)


@pytest.mark.parametrize("stack", ["torch", "fsdp1"])
def test_fsdp_that_shards_gradients_gathers_parameters_once(stack: str) -> None:
    found = [job_of(run(stack=stack, fsdp=stated)).plan for stated in ("zero2", "zero3")]
    assert [each.shard for each in found] == [Shard.PARAMETERS] * 2
    assert [each.reshard_after_forward for each in found] == [False, True]


@pytest.mark.parametrize(
    ("stack", "shard", "recompute", "sequence_parallel"),
    [
        ("torch", Shard.PARAMETERS, Recompute.SELECTIVE, True),
        ("megatron-core", Shard.OPTIMIZER, Recompute.NONE, True),
        ("megatron-2021", Shard.NONE, Recompute.FULL, False),
    ],
)
def test_what_is_not_stated_is_the_stacks(
    stack: str, shard: Shard, recompute: Recompute, sequence_parallel: bool
) -> None:
    plan = job_of(run(stack=stack, fsdp=None, act_ckpt=None, tp=2)).plan
    assert (plan.shard, plan.recompute, plan.sequence_parallel) == (shard, recompute, sequence_parallel)


def test_what_was_assumed_of_checkpointing_goes_before_the_stacks() -> None:
    assert job_of(run(act_ckpt=None, act_ckpt_assumed="none")).plan.recompute is Recompute.NONE
    assert job_of(run(act_ckpt="full", act_ckpt_assumed="none")).plan.recompute is Recompute.FULL


def test_selective_is_what_the_stack_means_by_it() -> None:
    assert job_of(run(act_ckpt="selective")).plan.recompute is Recompute.SELECTIVE
    megatron = run(act_ckpt="selective", stack="megatron-core", fsdp="zero1")
    assert job_of(megatron).plan.recompute is Recompute.ATTENTION


def test_a_micro_batch_that_is_not_stated_is_the_whole_share_in_torch_alone() -> None:
    plan = job_of(run(micro_batch=None)).plan
    assert (plan.micro_batch_size, plan.gradient_accumulation_steps) == (4, 1)
    for other in (
        {"stack": "megatron-core"},
        {"stack": "megatron-core", "pp": 2},
        {"stack": "fsdp1", "pp": 2},
    ):
        with pytest.raises(CannotPredictError, match="micro_batch is not stated"):
            job_of(run(micro_batch=None, **other))


def test_the_loss_is_compiled_since_the_stack_compiles_it() -> None:
    kernels = {
        year: job_of(run(stack="torch-compile", year=year)).facts.stack.kernels
        for year in (2024, 2025, 2026, None)
    }
    assert kernels[2024] is Kernels.COMPILED
    assert {kernels[year] for year in (2025, 2026, None)} == {Kernels.COMPILED_LOSS}
    assert job_of(run(year=2026)).facts.stack.kernels is Kernels.EAGER
    days = {
        day: job_of(run(stack="torch-compile", year=2025, date=day)).facts.stack.kernels
        for day in ("2025-04-01", "2025-04-02")
    }
    assert days == {"2025-04-01": Kernels.COMPILED, "2025-04-02": Kernels.COMPILED_LOSS}


def test_settings_of_some_models_compile_the_loss_alone() -> None:
    def kernels(**fields: Any) -> Kernels:
        return job_of(
            run(**{"model": "deepseek-v2-lite-16b", "date": "2025-08-20", **fields})
        ).facts.stack.kernels

    assert kernels() is Kernels.EAGER_BLOCKS
    assert kernels(model="llama-3-8b") is kernels(date="2025-08-19") is Kernels.EAGER
    # operators of a graph that eager kernels run are not fused
    assert kernels(notes="SimpleFSDP aot_eager") is Kernels.EAGER
    assert kernels(stack="torch-compile") is Kernels.COMPILED_LOSS


@pytest.mark.parametrize(
    ("fields", "in_graph"),
    [
        ({}, False),
        ({"notes": "FSDP2 eager"}, False),
        ({"notes": "SimpleFSDP aot_eager; eager"}, True),
        ({"source": "pytorch/torchtitan commit fca8ab7be (graph_trainer)"}, True),
    ],
)
def test_a_row_may_say_that_its_graph_gathers(fields: dict[str, Any], in_graph: bool) -> None:
    assert job_of(run(**fields)).facts.stack.gathers_in_graph is in_graph


@pytest.mark.parametrize(
    ("stated", "apart"),
    [
        ({"date": "2025-07-28"}, True),
        ({"date": "2025-07-27"}, False),
        ({"date": "2025-07-28", "notes": "SimpleFSDP aot_eager"}, False),
        ({"date": "2025-07-28", "stack": "fsdp1"}, False),
    ],
)
def test_ends_are_units_since_a_day(stated: dict[str, Any], apart: bool) -> None:
    assert job_of(run(**stated)).facts.stack.ends_apart is apart


@pytest.mark.parametrize("stack", ["torch", "torch-compile"])
def test_runs_prefetch_experts_with_their_block(stack: str) -> None:
    assert load_stack(stack).experts_apart
    assert not job_of(run(stack=stack)).facts.stack.experts_apart


@pytest.mark.parametrize(
    ("stated", "casts"),
    [
        ({"notes": "FSDP1; fp32 reduce-scatter; eager"}, True),
        ({"stack": "fsdp1"}, True),
        ({"notes": "fsdp16 x tp2; eager"}, False),
        ({"notes": "FSDP2"}, False),
    ],
)
def test_a_row_may_say_that_it_ran_fsdp1(stated: dict[str, Any], casts: bool) -> None:
    assert job_of(run(**stated)).facts.stack.casts_gradients_aside is casts


def test_a_graph_fuses_all_or_marked_regions() -> None:
    fields = {"stack": "torch-compile", "source": "torchtitan commit a364b4b4f (graph_trainer)"}
    kernels = {
        notes: job_of(run(notes=notes, **fields)).facts.stack.kernels
        for notes in ("regional inductor; FSDP4 TP2", "full inductor; FSDP4 TP2")
    }
    assert list(kernels.values()) == [Kernels.EAGER, Kernels.COMPILED_LOSS]
    # of other software nothing is known
    other = run(stack="torch-compile", notes="regional inductor")
    assert job_of(other).facts.stack.kernels is Kernels.COMPILED_LOSS


def kept(**fields: Any) -> Saved:
    """Return what selective recompute keeps of the last layer of a run."""
    facts = job_of(run(act_ckpt="selective", **fields)).facts
    return [block for block in facts.model.blocks if block.unit][-1].activations.selective


#: Llama 3 8B's products and attention's output in one sample, in units of its width
_OF_TOKENS = 2 * 4096 * 8192
_STATISTICS = 4 * 32 * 8192
_EVERY = Saved(tensor=(1 + 0.5 + 1 + 7) * _OF_TOKENS + _STATISTICS, sequence=2 * _OF_TOKENS)
_GATHERED = Saved(replicated=2 * _OF_TOKENS)


@pytest.mark.parametrize(
    ("day", "tp", "reshards", "more"),
    [
        ("2026-04-22", 2, True, Saved()),
        ("2026-04-23", 2, False, _GATHERED),
        ("2026-04-28", 2, False, _GATHERED),
        # nothing is gathered along sequences
        ("2026-04-28", 1, False, Saved()),
        ("2026-04-29", 2, True, Saved()),
    ],
)
def test_what_a_graphs_default_policy_keeps(day: str, tp: int, reshards: bool, more: Saved) -> None:
    fields: dict[str, Any] = {"date": day, "tp": tp, "source": "commit a364b4b4f (graph_trainer)"}
    assert kept(**fields) == _EVERY + more
    assert job_of(run(**fields)).plan.reshard_after_forward is reshards


def test_before_that_and_elsewhere_every_second_product_is_kept() -> None:
    graph = "commit fca8ab7be (graph_trainer)"
    usual = kept(date="2026-04-28")
    assert usual != _EVERY
    assert kept(date="2026-04-21", source=graph) == usual
    assert job_of(run(date="2026-04-28")).plan.reshard_after_forward


def test_what_experts_exchange_is_kept_since_a_day() -> None:
    fields: dict[str, Any] = {"model": "deepseek-v2-lite-16b", "seq_len": 4096}
    before, after, alone = (
        kept(**fields, date=day, ep=ep)
        for day, ep in (("2025-09-05", 8), ("2025-09-06", 8), ("2025-09-06", 1))
    )
    # six rows of each token, to experts and back
    assert after == before + Saved(expert=2 * 6 * 2 * 2048 * 4096)
    assert alone == before


@pytest.mark.parametrize(
    ("stated", "layers"),
    [
        ({"source": "torchtitan/components/quantization/nvfp4.md@b5bcd76c"}, 27),
        ({"source": "pytorch/torchtitan commit bcc09297a"}, 32),
    ],
)
def test_products_of_four_bits_are_not_kept(stated: dict[str, Any], layers: int) -> None:
    fields: dict[str, Any] = {"hardware": "gb200-nvl72", "gpus": 4, "precision": "nvfp4", **stated}
    model = job_of(run(stack="torch-compile", act_ckpt="selective", **fields)).facts.model
    first, *rest = (block for block in model.blocks if block.unit)
    assert (first.repeat, sum(block.repeat for block in rest)) == (layers, 32 - layers)
    attended = Saved(tensor=_OF_TOKENS + _STATISTICS, sequence=_OF_TOKENS)
    assert first.activations.selective == attended
    assert {block.activations.selective == attended for block in rest} <= {False}


def test_the_runs_stages_may_hand_on_what_ours_put_together() -> None:
    crossing = {
        name: job_of(run(stack=name)).facts.stack.crosses_divided for name in ("torch", "torch-compile")
    }
    assert crossing == {"torch": True, "torch-compile": True}
    assert not load_stack("torch").crosses_divided


def test_torchtitans_models_repeated_keys_for_all_heads_that_share_them() -> None:
    def gathered(**stated: Any) -> float:
        return max(block.context_parallel_bytes for block in job_of(run(cp=2, **stated)).facts.model.blocks)

    once = gathered(stack="megatron-core")
    assert gathered(date="2026-01-27") == gathered(model="llama-2-7b", date="2026-01-27") / 4 == once
    # four heads of queries share one of keys, and none in Llama 2
    assert gathered(date="2024-12-26") == gathered(year=2024) == 4 * once
    assert gathered(model="llama-2-7b", date="2024-12-26") == 4 * once


def test_torchtitan_compiles_and_gathers_what_it_has_in_fp8() -> None:
    def told(**stated: Any) -> tuple[str, bool]:
        stack = job_of(run(**stated)).facts.stack
        return stack.name, stack.gathers_fp8

    assert told() == ("torch", False)
    assert told(precision="fp8") == ("torch", True)
    assert told(precision="fp8", source="pytorch/torchtitan docs/performance.md") == ("torch-compile", True)
    assert told(precision="fp8 rowwise", stack="torch-compile") == ("torch-compile", False)
    assert told(precision="mxfp8", stack="torch-compile") == ("torch-compile", False)
    assert told(precision="fp8", stack="fsdp1") == ("fsdp1", False)
    assert told(precision="bf16", stack="megatron-core") == ("megatron-core", True)


def test_torchtitans_llama_4_attends_by_flex_attention() -> None:
    def kernel(**stated: Any) -> Attention:
        return job_of(run(**stated)).facts.stack.attention

    assert kernel() is Attention.SECOND
    assert kernel(model="llama-4-scout") is Attention.FLEX
    assert kernel(model="llama-4-scout", stack="megatron-core") is Attention.NEWEST


def test_recipes_of_gpt_3_drop_scores_on_megatron_core() -> None:
    for stack, found in (("megatron-core", Attention.DROPPING), ("torch", Attention.SECOND)):
        assert job_of(run(model="gpt3-175b", stack=stack)).facts.stack.attention is found


def test_runs_from_before_a_model_had_its_name_have_its_form() -> None:
    sizes = {"layers": 72, "hidden": 14400, "heads": None, "kv_heads": None, "vocab": 250_880}
    early = run(model="BLOOM-prequel GPT 181B", **sizes)
    model = job_of(early).facts.model
    # the released model's 112 heads do not divide this width
    assert (model.hidden, model.heads) == (14400, 120)
    # the table, and the norm behind it: no positions
    assert len(model.blocks[0].parameters) == 2
    assert sum(group.count for group in model.blocks[0].parameters[1:]) == 2 * 14400


def test_pipelines_interleave_where_stages_are_several() -> None:
    once, twice = job_of(run(pp=2, global_batch=64)), job_of(run(pp=2, vpp=2, global_batch=64))
    assert once.plan.pp_schedule is PipelineSchedule.ONE_F_ONE_B
    assert (twice.plan.pp_schedule, twice.plan.virtual_stages) == (PipelineSchedule.INTERLEAVED, 2)
    assert not once.plan.reshard_after_forward
    assert job_of(run(global_batch=64)).plan.reshard_after_forward


def test_torchtitan_interleaves_two_stages_unless_told() -> None:
    def stages(stack: str = "torch-compile", **stated: Any) -> int:
        return job_of(run(stack=stack, pp=2, global_batch=64, **stated)).plan.virtual_stages

    assert stages(notes="Interleaved 1F1B (vpp not stated)") == stages(notes="Interleaved1F1B") == 2
    assert stages(notes="Interleaved 1F1B", vpp=4) == 4
    assert stages() == stages(notes="non-interleaved 1F1B") == 1
    assert stages("megatron-core", notes="Interleaved 1F1B") == 1


def test_a_part_of_a_node_and_several_nodes() -> None:
    assert job_of(run(gpus=2)).facts.hardware.devices_per_node == 2
    several = job_of(run(gpus=32, global_batch=64)).facts.hardware
    assert (several.num_nodes, several.devices_per_node) == (4, 8)
    named = job_of(run(hardware=None, gpu="H100-80GB")).facts.hardware
    assert (named.device.name, named.world_size) == ("h100-sxm5", 8)


@pytest.mark.parametrize(
    ("stated", "batch"),
    [
        ({"year": 2024}, (4, 2)),
        ({"date": "2025-04-06"}, (4, 2)),
        ({"date": "2025-04-07"}, (1, 8)),
        ({}, (1, 8)),
    ],
)
def test_torchtitans_pipelines_had_as_many_micro_batches_as_ranks(
    stated: dict[str, Any], batch: tuple[int, int]
) -> None:
    plan = job_of(run(pp=2, micro_batch=None, **stated)).plan
    assert (plan.micro_batch_size, plan.gradient_accumulation_steps) == batch


def test_micro_batches_of_published_runs_are_the_presets() -> None:
    sizes = {"model": "GPT 76.1B", "stack": "megatron-2021", "hardware": "dgx-a100", "fsdp": "none"}
    stated = {"gpus": 1024, "tp": 8, "pp": 4, "global_batch": 1792, "micro_batch": None, "seq_len": 2048}
    plan = job_of(run(**sizes | stated)).plan
    assert (plan.micro_batch_size, plan.virtual_stages) == (2, 3)
    # what is stated goes before, and another batch is another run
    other = job_of(run(**sizes | stated | {"micro_batch": 1})).plan
    assert (other.micro_batch_size, other.virtual_stages) == (1, 1)
    with pytest.raises(CannotPredictError, match="micro_batch is not stated"):
        job_of(run(**sizes | stated | {"global_batch": 896}))


def test_adapters_are_trained_beside_frozen_weights() -> None:
    model = job_of(run(task="lora", model="Llama3 8b Finetuning LORA")).facts.model
    # of rank 32 beside queries, keys and values
    assert model.trainable_parameters == 32 * 32 * (8192 + 2 * 5120)
    assert model.parameters == 8_030_261_248 + model.trainable_parameters


def test_megatron_fine_tunes_on_packed_samples_and_sums_gradients_in_bf16() -> None:
    stated = {"stack": "megatron-core", "model": "Llama3 8b", "seq_len": 4096, "fsdp": "zero1"}

    def attended(task: str) -> float:
        facts = job_of(run(task=task, **stated)).facts
        assert facts.stack.mixed_gradient_bytes == 2
        (layer,) = (block for block in facts.model.blocks if block.unit)
        return sum(each.flops for each in layer.operators if each.kind is OperatorKind.ATTENTION)

    assert attended("sft") == pytest.approx(attended("pretrain") * 200 / 4096)
    assert attended("lora") == pytest.approx(attended("sft"))


@pytest.mark.parametrize(
    ("stack", "load"),
    [
        ("megatron-core", StageLoad.LAYERS),
        ("megatron-deepspeed", StageLoad.LAYERS),
        ("torch", StageLoad.FLOPS),
    ],
)
def test_megatrons_pipelines_hold_equally_many_layers_a_stage(stack: str, load: StageLoad) -> None:
    assert job_of(run(stack=stack, fsdp="none")).facts.model.stage_load is load


@pytest.mark.parametrize("regex", ["transformer|embed", "transformer|embedding"])
def test_a_row_may_say_that_ends_count_as_layers(regex: str) -> None:
    notes = f"partition_method type:{regex}"
    job = job_of(run(stack="megatron-deepspeed", fsdp="zero1", notes=notes))
    assert job.facts.model.stage_load is StageLoad.BLOCKS
    # torchtitan has no such thing
    assert job_of(run(notes=notes)).facts.model.stage_load is StageLoad.FLOPS


@pytest.mark.parametrize(
    ("stated", "fused"),
    [
        ({"date": "2025-02-24"}, True),
        ({"date": "2025-02-23"}, False),
        ({"year": 2024}, False),
        ({"source": "benchmarks/llama3_h100_202412_torchtitan.md@b5bcd76c Table1", "year": 2025}, False),
        ({"source": "benchmarks/llama3-8b_h200_202506_trainy.md@b5bcd76c"}, True),
        ({}, True),
        ({"stack": "fsdp1"}, False),
        ({"stack": "megatron-core", "fsdp": "zero1", "year": 2022}, True),
    ],
)
def test_optimizers_step_in_one_kernel_since_a_day(stated: dict[str, Any], fused: bool) -> None:
    assert job_of(run(**stated)).facts.stack.steps_in_one_kernel is fused


@pytest.mark.parametrize(("stack", "element"), [("torch", 2), ("torch-compile", 2)])
def test_a_training_script_held_logits_in_fp32_until_a_day(stack: str, element: int) -> None:
    held = {
        day: job_of(run(stack=stack, date=day)).facts.model.blocks[-1].output
        for day in ("2024-06-11", "2024-06-12")
    }
    assert held["2024-06-12"] == Saved(loss=element * 128256 * 8192)
    assert held["2024-06-11"] == Saved(loss=(element + 4) * 128256 * 8192)


def test_four_bits_are_multiplied_where_eight_are() -> None:
    stated = {"stack": "megatron-core", "hardware": "gb200-nvl72", "gpus": 4, "fsdp": "zero1"}
    four = job_of(run(precision="nvfp4", **stated)).facts
    eight = job_of(run(precision="mxfp8", **stated)).facts
    assert (four.workload.precision, four.model) == (Precision.FP8, eight.model)
    rates = eight.hardware.device.sustained
    assert four.hardware.device.sustained.fp8 == rates.fp4 != rates.fp8
    assert four.hardware.device.peak.fp8 == 1e16


@pytest.mark.parametrize(
    ("stated", "captured"),
    [
        ({"source": "performance-summary.md@067f987df0 L102 (26.06)"}, True),
        ({"source": "performance-summary.md@067f987df0 L102 (26.06.01)"}, True),
        ({"date": "2026-06-01"}, True),
        ({"source": "performance-summary.md@067f987df0 L301 (26.04)"}, False),
        # not known to be of that release, of another format, of a model whose recipe is none such
        ({"year": 2026}, False),
        ({"date": "2026-06-01", "precision": "fp8"}, False),
        ({"date": "2026-06-01", "model": "kimi-k2"}, False),
        ({"date": "2026-06-01", "stack": "torch"}, False),
    ],
)
def test_recipes_of_experts_are_captured_since_a_release(stated: dict[str, Any], captured: bool) -> None:
    usual = {"stack": "megatron-core", "model": "qwen3-30b-a3b", "fsdp": "zero1", "precision": "mxfp8"}
    assert job_of(run(**usual | stated)).facts.stack.captured is captured


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        # as the stack has it: one copy, kernels of its own for the order, nothing beside
        ({}, (True, False, False, False)),
        ({"dispatcher": "alltoall"}, (False, False, False, False)),
        ({"dispatcher": "deepep", "exchange_overlap": True}, (True, False, True, False)),
        ({"dispatcher": "hybridep"}, (True, True, False, False)),
        # steps that are captured exchange beside another micro-batch, unless told
        ({"cuda_graph": "step"}, (True, False, True, True)),
        ({"cuda_graph": "step", "exchange_overlap": False}, (True, False, False, True)),
        # what a row says goes before what its release does
        ({"date": "2026-06-01", "cuda_graph": "none"}, (True, False, False, False)),
    ],
)
def test_rows_say_how_experts_get_their_tokens(stated: dict[str, Any], expected: tuple[bool, ...]) -> None:
    usual = {"stack": "megatron-core", "model": "qwen3-30b-a3b", "fsdp": "zero1", "precision": "mxfp8"}
    stack = job_of(run(**usual | stated)).facts.stack
    found = (
        stack.dispatch_once_per_domain,
        stack.permutes_in_exchange,
        stack.exchanges_beside,
        stack.captured,
    )
    assert found == expected


@pytest.mark.parametrize(("column", "value"), [("dispatcher", "carrier pigeon"), ("cuda_graph", "attn")])
def test_unknown_ways_to_experts_are_told(column: str, value: str) -> None:
    with pytest.raises(CannotPredictError, match=f"{column} '{value}' is none of"):
        job_of(run(stack="megatron-core", fsdp="zero1", **{column: value}))


def test_sizes_go_before_the_presets() -> None:
    model = job_of(run(layers=4, vocab=32000)).facts.model
    assert (model.layers, model.vocab, model.kv_heads) == (4, 32000, 8)


@pytest.mark.parametrize(
    ("stated", "vocab", "padded"),
    [
        ({}, 50257, True),
        ({"vocab_padding": "none"}, 50257, False),
        # each rank has as many rows, and nobody the last one
        ({"vocab_padding": "none", "tp": 4}, 50256, False),
    ],
)
def test_rows_say_that_nothing_pads_their_vocabulary(
    stated: dict[str, Any], vocab: int, padded: bool
) -> None:
    facts = job_of(run(stack="megatron-deepspeed", fsdp="none", vocab=50257, **stated)).facts
    assert (facts.model.vocab, facts.stack.pads_vocabulary) == (vocab, padded)
    sized = {"model": "somebody's", "layers": 2, "hidden": 512, "vocab": 50257}
    own = job_of(run(stack="megatron-deepspeed", fsdp="none", **sized, **stated)).facts
    assert own.model.vocab == vocab


def test_rows_say_that_their_loss_is_in_the_format_of_the_products() -> None:
    def moved(**stated: str) -> list[list[float]]:
        model = job_of(run(stack="megatron-deepspeed", fsdp="none", **stated)).facts.model
        return [
            [each.bytes for each in block.operators if each.kind is OperatorKind.ELEMENTWISE]
            for block in model.distinct_blocks
        ]

    (*before, usual), (*others, short) = moved(), moved(loss_format="short")
    assert others == before
    # read and written in two bytes, of 18 that an fp32 loss moves beside
    assert short[-1] == 4 * 128256 * 8192 == pytest.approx(usual[-1] * 4 / 18)
    assert short[:-1] == usual[:-1]
    with pytest.raises(CannotPredictError, match="loss_format 'fp64' is not short"):
        moved(loss_format="fp64")


def test_a_vocabulary_of_unknown_size_or_padding_is_told() -> None:
    assert job_of(run(vocab_padding="none", tp=2)).facts.model.vocab == 128256
    with pytest.raises(CannotPredictError, match="vocab_padding 'some' is not none"):
        job_of(run(vocab_padding="some"))


def test_a_hybrid_with_fewer_layers_has_the_first_ones() -> None:
    whole, cut = (job_of(run(model="nemotron-h-8b", **more)).facts.model for more in ({}, {"layers": 8}))
    assert [block.name for block in cut.blocks] == [block.name for block in whole.blocks[:9]] + ["head"]
    assert cut.layers == 8


@pytest.mark.parametrize(
    ("stated", "mixed"),
    [
        ({}, False),
        ({"model": "somebody's", "moe_experts": 8}, True),
        # tables that state no sizes name a preset
        ({"model": "mixtral-8x7b"}, True),
        ({"model": "Nemotron_3_Super"}, True),
        ({"model": "nemotron-h-56b"}, False),
        ({"model": "somebody's"}, False),
        ({"model": "resnet-50"}, False),
    ],
)
def test_mixtures_are_told_by_row_or_preset(stated: dict[str, Any], mixed: bool) -> None:
    assert has_experts(run(**stated)) is mixed


def test_models_of_no_preset_have_the_form_of_their_parameters() -> None:
    sizes = {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 50304, "seq_len": 2048}
    gpt = job_of(run(model="somebody's", params_b=1.32, **sizes)).facts.model
    assert 1.31e9 < gpt.parameters < 1.33e9
    llama = job_of(run(model="somebody's", params_b=1.34, ffn_hidden=5504, **sizes)).facts.model
    # three matrices of 5,504 where GPT has two of 8,192, and an embedding beside the head
    assert 1.41e9 < llama.parameters < 1.43e9
    with pytest.raises(CannotPredictError, match="neither GPT nor Llama"):
        job_of(run(model="somebody's", params_b=3.0, **sizes))
    with pytest.raises(CannotPredictError, match="layers are not stated"):
        job_of(run(model="somebody's", **(sizes | {"layers": None})))


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"stack": None}, "stack is not stated"),
        ({"stack": "jax"}, "unknown stack 'jax'"),
        ({"hardware": None}, "neither hardware nor gpu"),
        ({"hardware": "abacus"}, "unknown hardware 'abacus'"),
        ({"precision": None}, "precision is not stated"),
        ({"precision": "nvfp4"}, "the rate of h100-sxm5 for nvfp4 is unknown"),
        ({"precision": "nvfp4 (85% layers)"}, "number format nvfp4 (85% layers)"),
        ({"task": "distillation"}, "task distillation is none of pretrain, sft, lora"),
        ({"model": "deepseek-v4-flash"}, "sparse attention"),
        ({"seq_len": None}, "seq_len is not stated"),
        ({"dp": 3}, "dp 3 x pp, cp and tp 1 are not 8 devices"),
        ({"fsdp": "zero9"}, "fsdp zero9"),
        ({"fsdp": "hsdp", "gpus": 24, "gpus_per_node": 16}, "no whole nodes"),
        ({"global_batch": None}, "global_batch is not stated"),
        ({"global_batch": 20}, "no multiple of dp 8 x micro-batch 2"),
        ({"act_ckpt": "sometimes"}, "'sometimes' is none of"),
        ({"ep": 3}, "ep 3 does not divide"),
    ],
)
def test_what_cannot_be_known_is_a_reason(stated: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotPredictError) as skipped:
        job_of(run(**stated))
    assert reason in skipped.value.reason
