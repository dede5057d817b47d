"""Users' own scripts dry-run: what they find is what a dry run of the plan finds that they write out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.dry_run.plans import CONTEXT_PARALLEL, PIPELINED, PLAN, TENSOR_PARALLEL
from runtime.dry_run.test_ranks import dried
from torch._subclasses.fake_tensor import FakeTensor

from parastrat.dry_run import DryRun
from parastrat.errors import ParastratError, UsageError, WrapError
from parastrat.plan import Mesh, PipelineSchedule, Shard
from parastrat.runtime.dry_run import Command, command_of, run_script
from parastrat.runtime.dry_run.accelerator import pretended_accelerator
from parastrat.runtime.dry_run.values import Values
from parastrat.runtime.dry_run.watch import Watch

SCRIPT = Path(__file__).with_name("training_script.py")
PLANNED = Path(__file__).with_name("planned_script.py")
BETWEEN_STAGES = ("send", "recv")
#: plans that need proofs
DIVIDED: dict[str, tuple[str, dict[str, Any]]] = {
    "tp": (TENSOR_PARALLEL, {"mesh": Mesh(tp=2), "sequence_parallel": True, "loss_parallel": True}),
    "pp": (PIPELINED, {"mesh": Mesh(pp=2), "pp_schedule": PipelineSchedule.ONE_F_ONE_B}),
}


#: for two ranks, with as many micro-batches as the script has samples for
SHARDED = PLAN.replace("dp_shard = 4", "dp_shard = 2").replace("steps = 1", "steps = 2")


def ran(
    *arguments: str, ranks: int = 4, rank: int = 0, steps: int = 2, script: Path = SCRIPT, **more: Any
) -> DryRun:
    command = Command(script=str(script), arguments=arguments, ranks_per_node=ranks, **more)
    return run_script(command, rank, steps)


def passed(found: DryRun) -> dict[str, int]:
    return {each.name: each.bytes for each in found.traffic if each.name in BETWEEN_STAGES}


def alike(script: DryRun, plan: DryRun) -> None:
    """Compare all but the tokens: a script moves those that it compares with too, and slices them."""
    assert script.parameters == plan.parameters
    assert {each for each in script.traffic if each.name not in BETWEEN_STAGES} == {
        each for each in plan.traffic if each.name not in BETWEEN_STAGES
    }
    # until torch 2.13 stages begin with four bytes more, in the only step of a plan's dry run
    assert passed(script) == pytest.approx(passed(plan), abs=4)
    # and what they keep of it
    kept = 3000 if passed(plan) else 1000
    assert script.optimizer_step == pytest.approx(plan.optimizer_step, abs=kept)
    assert script.forward_backward == pytest.approx(plan.forward_backward, rel=0.02)


def test_no_driver_is_looked_for_where_torch_is_built_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers ask in each step, and a build for CUDA fails on hosts without GPUs."""

    def missing() -> bool:
        raise RuntimeError("CUDA driver version is insufficient")

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", missing)
    monkeypatch.setattr(torch.accelerator, "current_stream", missing)
    with pretended_accelerator(Values(), Watch(FakeTensor), 2, 0):
        assert not torch.cuda.is_current_stream_capturing()
        # torch 2.14 and later
        assert not torch.accelerator.current_stream().is_capturing()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fsdp2", "meta"])
def test_fsdp2_by_hand_is_as_its_plan(kind: str) -> None:
    alike(ran(kind), dried())


@pytest.mark.slow
def test_ddp_by_hand_is_as_its_plan() -> None:
    alike(ran("ddp", rank=3), dried("Wide", mesh=Mesh(dp_replicate=4), shard=Shard.NONE))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["planned", "built"])
def test_a_script_under_a_plan_is_as_the_plan(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN, encoding="utf-8")
    alike(ran(kind, plan=str(path)), dried())


@pytest.mark.slow
@pytest.mark.parametrize("given", ["built", "planned"])
@pytest.mark.parametrize("divided", DIVIDED)
def test_a_script_whose_plan_needs_proofs_is_as_the_plan(divided: str, given: str, tmp_path: Path) -> None:
    text, fields = DIVIDED[divided]
    path = tmp_path / "plan.toml"
    path.write_text(text, encoding="utf-8")
    expected = dried(
        "Fed", gradient_accumulation_steps=2, shard=Shard.NONE, reshard_after_forward=False, **fields
    )
    found = ran(given, ranks=2, script=PLANNED, plan=str(path))
    # stages tell each other the loss, which the plan's own loop does not ask for
    of_loss = [each for each in found.traffic if (each.name, each.bytes) == ("allreduce", 4)]
    assert len(of_loss) == (divided == "pp")
    alike(replace(found, traffic=tuple(each for each in found.traffic if each not in of_loss)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["built", "planned"])
def test_a_script_whose_positions_are_divided_is_as_the_plan(given: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(CONTEXT_PARALLEL, encoding="utf-8")
    found = ran(given, "attending", ranks=2, script=PLANNED, plan=str(path))
    alike(found, dried("Attending", gradient_accumulation_steps=2, mesh=Mesh(cp=2)))


@pytest.mark.slow
@pytest.mark.parametrize("divided", [TENSOR_PARALLEL, SHARDED])
def test_a_copy_costs_one_ranks_shares(divided: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(divided, encoding="utf-8")
    alone, beside = (
        ran("planned", *more, ranks=2, script=PLANNED, plan=str(path)) for more in ((), ("averaged",))
    )
    assert beside.forward_backward - alone.forward_backward == alone.parameters
    assert beside.optimizer_step - alone.optimizer_step == alone.parameters


@pytest.mark.slow
def test_values_that_are_read_and_what_is_left_out_are_told() -> None:
    found = ran("compiled", "--read", ranks=1)
    line = next(index for index, text in enumerate(SCRIPT.read_text().splitlines(), 1) if ".item()" in text)
    assert found.caveats == (
        "torch.compile is left out: what is verified is the eager wrapping",
        f"training_script.py, line {line} reads a value of the device, which is not there: taken as 1.0",
    )


@pytest.mark.slow
def test_a_script_that_ends_early_has_the_figures_of_its_last_step() -> None:
    once, more = ran("compiled", "--once", ranks=1), ran("compiled", ranks=1)
    assert once.caveats[-1] == "the script ended after optimizer step 1, which the figures are of"
    # no optimizer states yet while the first backward runs
    states = 2 * once.parameters
    assert more.forward_backward - once.forward_backward == pytest.approx(states, abs=1000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compiled", "--nothing"), "ended without an optimizer step"),
        (("compiled", "--where"), "size depends on values"),
        (("unknown",), "KeyError: 'unknown' (training_script.py"),
    ],
)
def test_what_stops_a_script_is_one_message(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(WrapError) as refused:
        ran(*arguments, ranks=1)
    assert said in refused.value.message


def test_torchruns_command_line_is_read_as_torchrun_reads_it() -> None:
    words = f"torchrun --nnodes 2 --nproc 8 --rdzv-backend c10d {SCRIPT} ddp --read"
    command = command_of(words.split())
    assert command == Command(script=str(SCRIPT), arguments=("ddp", "--read"), nodes=2, ranks_per_node=8)
    told = command.environment(11)
    assert {name: told[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK")} == {
        "RANK": "11",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "16",
        "GROUP_RANK": "1",
    }


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (f"python {SCRIPT} ddp", Command(script=str(SCRIPT), arguments=("ddp",))),
        ("python -m package.train x", Command(script="package.train", arguments=("x",), as_module=True)),
        (
            f"{sys.executable} -m torch.distributed.run --nproc-per-node=2 {SCRIPT}",
            Command(script=str(SCRIPT), ranks_per_node=2),
        ),
    ],
)
def test_other_command_lines_are_read_too(words: str, command: Command) -> None:
    assert command_of(words.split()) == command


def test_a_plan_says_how_many_ranks_its_script_has(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN, encoding="utf-8")
    command = command_of(["parastrat", "run", str(path), str(SCRIPT), "planned"])
    assert (command.world_size, command.plan, command.arguments) == (4, str(path), ("planned",))
    assert command.environment(0)["PARASTRAT_PLAN"] == str(path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("accelerate launch train.py", "does not know how accelerate starts"),
        ("torchrun --nproc-per-node gpu train.py", "depends on the machine"),
        ("torchrun --nproc-per-node 8 nowhere.py", "there is no script nowhere.py"),
        ("torchrun --nope 8 train.py", "torchrun would refuse"),
        ("python", "given no script"),
        ("parastrat run", "given no plan"),
    ],
)
def test_command_lines_that_say_too_little_are_refused(words: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        command_of(words.split())
    assert said in refused.value.message
    assert isinstance(refused.value, ParastratError)
