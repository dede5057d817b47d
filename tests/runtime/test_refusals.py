"""What auto_parallelize refuses in one process, and what it says."""

from __future__ import annotations

import gc
import re
import warnings
from pathlib import Path

import pytest
import torch
from runtime.models import Gpt, plan, token_loss, tokens
from torch import nn

import parastrat
from parastrat.errors import MismatchError, ModelError, PlanFileError, UsageError, WrapError
from parastrat.parse import ModelFingerprint
from parastrat.plan import Compile, Offload, PipelineSchedule, Plan, Recompute, Shard
from parastrat.runtime.refusals import (
    check_calls,
    check_complex,
    check_fingerprint,
    check_optimizers,
    check_plan,
    check_scalars,
    check_world,
)
from parastrat.workload import Precision


def test_a_plan_for_another_world_names_both() -> None:
    with pytest.raises(
        MismatchError, match=r"plan is for 8 ranks \(dp_replicate 2 x dp_shard 4\), 1 was started"
    ) as caught:
        parastrat.auto_parallelize(Gpt(), plan=plan(dp_replicate=2, dp_shard=4))
    assert "re-plan with --replan" in caught.value.hint
    assert "parastrat verify" in caught.value.hint
    with pytest.raises(MismatchError, match="2 were started"):
        check_world(plan(dp_shard=4), 2)


def test_another_model_names_both_fingerprints() -> None:
    model = Gpt()
    count = sum(parameter.numel() for parameter in model.parameters())
    check_fingerprint(model, ModelFingerprint(ref="gpt", parameters=count, blocks=2))
    said = rf"gpt with {count:,} parameters in 3 repeated blocks; this Gpt has {count:,} in 2"
    with pytest.raises(MismatchError, match=said):
        check_fingerprint(model, ModelFingerprint(ref="gpt", parameters=count, blocks=3))
    with pytest.raises(MismatchError, match="with 7 parameters"):
        check_fingerprint(model, ModelFingerprint(ref="gpt", parameters=7, blocks=2))


@pytest.mark.parametrize(
    ("chosen", "message", "hint"),
    [
        (plan(dp_shard=8, shard=Shard.OPTIMIZER), "ZeRO-1", r"reshard_after_forward = false, dp_shard 8"),
        (plan(dp_shard=8, shard=Shard.GRADIENTS), "ZeRO-2", r"shard = parameters"),
        (
            plan(dp_replicate=2, cp=2, shard=Shard.NONE),
            r"cp 2 without sharded parameters yet \(ddp.* \(PS290\)",
            "recommend --applied",
        ),
        (
            plan(pp=2, pp_schedule=PipelineSchedule.ZBV, virtual_stages=2, recompute=Recompute.SELECTIVE),
            "recompute = selective with ZBV",
            "Interleaved1F1B",
        ),
        (
            plan(cp=2, shard=Shard.PARAMETERS, compile=Compile.BLOCK, recompute=Recompute.SELECTIVE),
            "compile = block with recompute = selective and cp",
            "recompute full",
        ),
        (plan(cp=2), "cp 2 without sharded parameters", "recommend --applied"),
        (plan(offload=Offload.OPTIMIZER), "offload = optimizer", "offload = none"),
        (plan(precision=Precision.FP8), "precision = fp8", "bf16-mixed"),
        (plan(recompute=Recompute.ATTENTION, compile=Compile.BLOCK), "recompute = attention", "selective"),
        (plan(dp_shard=2, shard=Shard.NONE), "shard = none over dp_shard", "dp_replicate"),
    ],
)
def test_plans_that_are_not_applied_name_one_that_is(chosen: Plan, message: str, hint: str) -> None:
    with pytest.raises(WrapError, match=message) as caught:
        check_plan(chosen)
    assert re.search(hint, caught.value.hint)


def test_an_optimizer_built_before_sharding_is_refused() -> None:
    model = Gpt()
    optimizer = torch.optim.AdamW(model.layers.parameters())
    with pytest.raises(WrapError, match=r"\(AdamW\) built before auto_parallelize holds layers\.0\.norm1"):
        check_optimizers(model, plan(dp_shard=2))
    check_optimizers(model, plan(dp_replicate=2))  # DDP keeps the parameters
    check_optimizers(Gpt(), plan(dp_shard=2))
    del optimizer
    check_optimizers(model, plan(dp_shard=2))


def test_an_optimizer_that_the_collector_was_told_to_leave_alone_is_found() -> None:
    model = Gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.freeze()  # as scripts do that spare themselves the collector's pauses
    with pytest.raises(WrapError, match="SGD"):
        check_optimizers(model, plan(dp_shard=2))
    del optimizer


def test_a_model_is_wrapped_once() -> None:
    model = parastrat.auto_parallelize(Gpt(), plan=plan())
    with pytest.raises(WrapError, match="already wrapped"):
        parastrat.auto_parallelize(model, plan=plan())


def test_only_modules_and_builders_are_taken() -> None:
    with pytest.raises(UsageError, match="got a int"):
        parastrat.auto_parallelize(3, plan=plan())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="got a str"):
        parastrat.auto_parallelize(lambda: "model", plan=plan())  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="plan is a int"):
        parastrat.auto_parallelize(Gpt(), plan=3)  # type: ignore[arg-type]


def test_a_plan_file_without_a_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('schema = "parastrat.plan/1"\n')
    with pytest.raises(PlanFileError):
        parastrat.auto_parallelize(Gpt(), plan=path)


def test_a_constructor_that_needs_values_says_so() -> None:
    def build() -> nn.Module:
        return nn.Linear(4, 1 + int(torch.rand(()).item()))

    with pytest.raises(ModelError, match="cannot be built on the meta device"):
        parastrat.auto_parallelize(build, plan=plan())


def test_functions_refuse_what_was_not_wrapped() -> None:
    with pytest.raises(UsageError, match="Gpt was not wrapped by auto_parallelize"):
        parastrat.forward_backward(Gpt(), *tokens(0, 2), loss_fn=token_loss)


def test_a_share_larger_than_planned_is_refused() -> None:
    model = parastrat.auto_parallelize(Gpt(), plan=plan(gradient_accumulation_steps=2))
    with pytest.raises(UsageError, match=r"got 5 samples for one optimizer step; the plan has 4 \(2 x 2"):
        parastrat.forward_backward(model, *tokens(0, 5), loss_fn=token_loss)


def test_losses_must_be_means() -> None:
    model = parastrat.auto_parallelize(Gpt(), plan=plan())
    with pytest.raises(UsageError, match="reduces by 'sum'"):
        parastrat.forward_backward(model, *tokens(0, 2), loss_fn=nn.CrossEntropyLoss(reduction="sum"))


def test_the_plain_loop_under_fp16_is_refused() -> None:
    model = parastrat.auto_parallelize(Gpt(), plan=plan(precision=Precision.FP16_MIXED))
    inputs, _ = tokens(0, 2)
    with pytest.raises(WrapError, match="fp16-mixed needs its loss scaled") as caught:
        model(inputs)
    assert "forward_backward" in caught.value.hint
    with torch.no_grad():
        model(inputs)


def test_the_plain_loop_warns_once_of_missing_accumulation() -> None:
    model = parastrat.auto_parallelize(Gpt(), plan=plan(gradient_accumulation_steps=3))
    inputs, targets = tokens(0, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parastrat.forward_backward(model, inputs, targets, loss_fn=token_loss)
    with pytest.warns(
        UserWarning, match=r"global batch is 6 .* but this loop steps after every micro-batch: 2"
    ):
        model(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(inputs)


class Scaled(nn.Module):
    """As CLIP: a single number scales what a layer gives."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.tensor(1.0))


@pytest.mark.parametrize("axes", [{"dp_shard": 2, "tp": 2}, {"dp_replicate": 2, "tp": 2}])
def test_a_parameter_without_a_dimension_is_named_where_fsdp2_would_hold_it(axes: dict[str, int]) -> None:
    with pytest.raises(WrapError, match="scale is a single number"):
        check_scalars(Scaled(), plan(**axes))


@pytest.mark.parametrize("axes", [{"dp_replicate": 2}, {"tp": 2}, {"dp_shard": 2}])
def test_other_strategies_take_a_parameter_without_a_dimension(axes: dict[str, int]) -> None:
    check_scalars(Scaled(), plan(**axes))


class Wave(nn.Module):
    """As a learned filter of frequencies: complex weights beside real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.ones(4, dtype=torch.complex64))
        self.layer = nn.Linear(4, 4)


def test_complex_parameters_are_named_where_fsdp2_would_gather_real_ones_with_them() -> None:
    waves = nn.Sequential(*(Wave() for _ in range(2)))
    for axes in ({"dp_shard": 2}, {"dp_replicate": 2, "tp": 2}):
        with pytest.raises(
            WrapError, match=r"0\.filter is torch\.complex64, and 0\.layer\.weight beside it"
        ):
            check_complex(waves, plan(**axes))
    for axes in ({"dp_replicate": 2}, {"tp": 2}):
        check_complex(waves, plan(**axes))
    for wave in waves:
        wave.layer = nn.Identity()
    check_complex(nn.Sequential(waves, nn.Linear(4, 4)), plan(dp_shard=2))


class PastHooks(nn.Module):
    """As SqueezeBERT: its blocks are run without being called."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer.forward(x)
        return x


class Called(PastHooks):
    """The same, as it should be."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_blocks_that_are_run_past_their_hooks_are_refused() -> None:
    past, called, gpt = PastHooks(), Called(), Gpt()
    with pytest.raises(WrapError, match=r"PastHooks runs its blocks by \.forward") as caught:
        check_calls(nn.Sequential(past), list(past.layers))
    assert "block(...)" in caught.value.hint
    # what is not sharded by itself may be run in any way
    check_calls(nn.Sequential(past), [past])
    check_calls(nn.Sequential(called), list(called.layers))
    check_calls(gpt, list(gpt.layers))
