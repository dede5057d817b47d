"""``accelerate.yaml``: as our checker reads it, as accelerate does, and as its launcher is called."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from parastrat.check import check_file
from parastrat.check.known import Given
from parastrat.config_file import ConfigFile, ConfigFormat
from parastrat.emit import EMITTERS, EmitError, Target
from parastrat.emit.accelerate import emit
from parastrat.hardware import DeviceType
from parastrat.parse.frameworks import plan_fields
from parastrat.plan import (
    Backend,
    Compile,
    ContextMethod,
    Mesh,
    Offload,
    PipelineSchedule,
    Recompute,
    Shard,
)
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from parastrat.case import Case
    from parastrat.hardware import Device

DDP: dict[str, Any] = {"mesh": Mesh(dp_replicate=8), "shard": Shard.NONE}
#: name: nodes of eight, and the plan's fields
PLANS: dict[str, tuple[int, dict[str, Any]]] = {
    "ddp": (1, {**DDP, "gradient_accumulation_steps": 4, "precision": Precision.FP32}),
    "ddp-of-two-nodes": (2, {**DDP, "mesh": Mesh(dp_replicate=16), "recompute": Recompute.FULL}),
    "zero1": (1, {**DDP, "shard": Shard.OPTIMIZER, "offload": Offload.OPTIMIZER}),
    "zero2-of-two-nodes": (
        2,
        {"mesh": Mesh(dp_replicate=16), "shard": Shard.GRADIENTS, "precision": Precision.FP16_MIXED},
    ),
    "fsdp2": (1, {"recompute": Recompute.FULL, "offload": Offload.PARAMETERS}),
    "fsdp2-kept": (2, {"reshard_after_forward": False, "compile": Compile.BLOCK}),
    "hsdp": (2, {"mesh": Mesh(dp_replicate=2, dp_shard=8), "gradient_accumulation_steps": 2}),
    "fsdp2+cp": (2, {"mesh": Mesh(dp_shard=8, cp=2), "cp_method": ContextMethod.RING}),
}


def planned(case_of: Callable[..., Case], name: str) -> Case:
    nodes, fields = PLANS[name]
    return case_of(nodes=nodes, **fields)


def written(case: Case, folder: Path) -> None:
    for file in emit(case):
        (folder / file.path).write_text(file.text)


@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp2", "hsdp"])
def test_goldens(name: str, case_of: Callable[..., Case], golden: Callable[[str, str], None]) -> None:
    for file in emit(planned(case_of, name), ["Block"]):
        golden(f"{name}.{file.path}", file.text)


@pytest.mark.parametrize("name", PLANS)
def test_the_checker_finds_nothing_and_reads_the_plan(
    name: str, case_of: Callable[..., Case], tmp_path: Path
) -> None:
    case = planned(case_of, name)
    written(case, tmp_path)
    for path in (tmp_path / "accelerate.yaml", tmp_path / "run.sh"):
        assert check_file(path, Given()).findings == ()
    table = YAML(typ="safe").load(tmp_path / "accelerate.yaml")
    read = plan_fields(ConfigFile(format=ConfigFormat.ACCELERATE, table=table, positions={}))
    shards_axes = case.plan.mesh.dp_replicate > 1 and case.plan.shards_parameters
    if case.plan.shard not in (Shard.OPTIMIZER, Shard.GRADIENTS) and (
        case.launch.nodes == 1 or shards_axes
    ):
        assert read["mesh"] == case.plan.mesh
    for field in ("shard", "offload", "precision"):
        if field in read:
            assert read[field] == getattr(case.plan, field), field


def launched(folder: Path) -> tuple[Any, dict[str, str]]:
    """Return what ``accelerate launch`` makes of the script's words and the file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    (folder / "bin").mkdir()
    stub = folder / "bin" / "accelerate"
    stub.write_text('#!/usr/bin/env bash\nshift\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    said = subprocess.run(
        ["/usr/bin/env", "bash", str(folder / "run.sh"), "train.py", "--lr", "1e-3"],
        env={**os.environ, "PATH": path, "HEAD": "localhost"},
        capture_output=True,
        text=True,
        check=True,
    )
    words = said.stdout.splitlines()
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert args.training_script == "train.py"
    assert args.training_script_args == ["--lr", "1e-3"]
    return args, prepare_multi_gpu_env(args)


@pytest.mark.parametrize("name", PLANS)
def test_accelerate_starts_what_was_planned(
    name: str, case_of: Callable[..., Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin, ParallelismConfig
    from accelerate.utils.dataclasses import DynamoBackend

    case = planned(case_of, name)
    plan, launch = case.plan, case.launch
    written(case, tmp_path)
    args, environment = launched(tmp_path)
    assert int(args.nproc_per_node) == launch.ranks_per_node
    assert int(getattr(args, "nnodes", None) or 1) == launch.nodes
    if launch.nodes > 1:
        assert (args.rdzv_backend, args.rdzv_endpoint) == ("c10d", "localhost:29500")
    assert args.use_fsdp is plan.shards_parameters
    assert args.use_deepspeed is (plan.shard in (Shard.OPTIMIZER, Shard.GRADIENTS))
    assert args.multi_gpu is (plan.shard is Shard.NONE)
    assert (
        environment["ACCELERATE_MIXED_PRECISION"]
        == {
            Precision.FP32: "no",
            Precision.BF16_MIXED: "bf16",
            Precision.FP16_MIXED: "fp16",
        }[plan.precision]
    )
    compiles = environment["ACCELERATE_DYNAMO_BACKEND"] == DynamoBackend.INDUCTOR.value
    assert compiles is (plan.compile is Compile.BLOCK)
    if args.use_deepspeed:
        assert args.zero_stage == {Shard.OPTIMIZER: 1, Shard.GRADIENTS: 2}[plan.shard]
        assert args.offload_optimizer_device == ("none" if plan.offload is Offload.NONE else "cpu")
    for key, value in environment.items():
        if key.startswith(("FSDP_", "PARALLELISM_CONFIG_")):
            monkeypatch.setenv(key, value)
    if args.use_fsdp:
        fsdp = FullyShardedDataParallelPlugin()
        assert fsdp.fsdp_version == 2
        assert fsdp.reshard_after_forward is plan.reshard_after_forward
        assert fsdp.activation_checkpointing is (plan.recompute is Recompute.FULL)
        offloads = type(fsdp.cpu_offload).__name__ == "CPUOffloadPolicy"
        assert offloads is (plan.offload is Offload.PARAMETERS)
    if args.use_parallelism_config:
        axes, mesh = ParallelismConfig(), plan.mesh
        assert axes.total_size == launch.world_size
        assert (axes.dp_replicate_size, axes.dp_shard_size) == (mesh.dp_replicate, mesh.dp_shard)
        assert axes.cp_size == mesh.cp
        if mesh.cp > 1:
            assert axes.cp_handler.cp_comm_strategy == "alltoall"


def test_each_repeated_block_is_named(case_of: Callable[..., Case]) -> None:
    text = emit(case_of(), ["Encoder", "Decoder"])[0].text
    assert "fsdp_transformer_layer_cls_to_wrap: Encoder,Decoder\n" in text


def test_what_the_script_has_to_set_is_said(case_of: Callable[..., Case]) -> None:
    case = case_of(**DDP, recompute=Recompute.FULL, precision=Precision.BF16, micro_batch_size=3)
    case = replace(case, workload=replace(case.workload, optimizer=Optimizer.MUON))
    text = emit(case)[0].text
    for line in (
        "per_device_train_batch_size: 3",
        "gradient_checkpointing: true",
        "the optimizer muon",
        "the model's own format: dtype=torch.bfloat16",
        "samples of 4096 tokens",
    ):
        assert f"# - {line}\n" in text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mesh": Mesh(pp=2, dp_shard=4), "pp_schedule": PipelineSchedule.ONE_F_ONE_B}, "pp 2"),
        ({"mesh": Mesh(dp_shard=4, tp=2)}, "tp 2"),
        ({"mesh": Mesh(dp_shard=8, ep=2)}, "ep 2"),
        ({"recompute": Recompute.SELECTIVE}, "recompute = selective"),
        ({"precision": Precision.FP8}, "precision = fp8"),
        ({"backend": Backend.GLOO}, "backend = gloo"),
        ({"offload": Offload.OPTIMIZER}, "offload = optimizer"),
        ({**DDP, "offload": Offload.PARAMETERS}, "offload = parameters"),
        (
            {"mesh": Mesh(dp_replicate=4, cp=2), "shard": Shard.OPTIMIZER},
            "shard = optimizer over the cp axis",
        ),
        # accelerate refuses it at its start (PS613)
        (
            {"mesh": Mesh(dp_replicate=4, cp=2), "shard": Shard.PARAMETERS},
            "dp_replicate 4 x cp 2 without dp_shard",
        ),
    ],
)
def test_what_it_has_no_words_for_is_refused(
    fields: dict[str, Any], message: str, case_of: Callable[..., Case]
) -> None:
    with pytest.raises(EmitError, match=f"accelerate cannot be configured for {message}"):
        EMITTERS[Target.ACCELERATE](case_of(**fields))


def test_what_a_workload_asks_and_it_has_no_words_for_is_refused(case_of: Callable[..., Case]) -> None:
    case = case_of()
    with pytest.raises(EmitError, match="a loss in 4 chunks"):
        emit(replace(case, workload=replace(case.workload, loss_chunks=4)))
    case = case_of(**{**DDP, "shard": Shard.GRADIENTS})
    with pytest.raises(EmitError, match="optimizer = sgd beside DeepSpeed"):
        emit(replace(case, workload=replace(case.workload, optimizer=Optimizer.SGD)))


def test_processors_are_left_to_torchrun(case_of: Callable[..., Case], cpu_device: Device) -> None:
    with pytest.raises(EmitError, match="processes on cpu") as refused:
        emit(case_of(device=cpu_device, backend=Backend.GLOO))
    assert "--to torchrun" in str(refused.value.hint)


@pytest.mark.parametrize(("kind", "name"), [(DeviceType.XPU, "MULTI_XPU"), (DeviceType.HPU, "MULTI_HPU")])
def test_other_accelerators_have_their_own_kind(
    kind: DeviceType, name: str, case_of: Callable[..., Case]
) -> None:
    case = case_of(**DDP)
    case = replace(case, hardware=replace(case.hardware, device=replace(case.hardware.device, type=kind)))
    assert f"distributed_type: {name}\n" in emit(case)[0].text


def test_one_device_needs_no_kind(case_of: Callable[..., Case]) -> None:
    text = emit(case_of(ranks=1, mesh=Mesh(), shard=Shard.NONE))[0].text
    assert "distributed_type: 'NO'\n" in text
