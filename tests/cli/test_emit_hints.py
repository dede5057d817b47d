"""What ``emit`` writes of one device, and what it advises for plans that it cannot write."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import Typed


def test_one_device_is_for_every_launcher(typed: Typed, tmp_path: Path) -> None:
    """accelerate was refused for the backend of a process that has none."""
    path = tmp_path / "plan.toml"
    assert typed("recommend", "gpt2", "--on", "rtx-4090x1", "-o", path).code == 0
    done = typed("emit", path, "--to", "accelerate")
    assert done.code == 0
    assert "# single on rtx-4090x1: 1 node of 1 rank" in done.out


def test_what_no_script_applies_is_sent_to_no_launcher(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    estimated = typed(
        "estimate", "llama-3.1-8b", "--on", "dgx-h100:1", "--offload", "optimizer", "-o", path
    )
    assert estimated.code == 0
    for target in ("torchtitan", "accelerate"):
        done = typed("emit", path, "--to", target)
        assert done.code == 2
        assert "torchrun" not in done.err
    typed("estimate", "gpt2", "--on", "dgx-h100:1", "--strategy", "fsdp2", "-o", path)
    assert typed("emit", path, "--to", "torchtitan").err.endswith("; or emit for torchrun or slurm\n")


def test_a_plan_that_breaks_rules_is_written_with_a_warning(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert typed("estimate", "gpt2", "--on", "dgx-h100:1", "--tp", "8", "-o", path).code == 1
    done = typed("emit", path, "--to", "torchrun")
    assert (done.code, done.out[:2]) == (0, "#!")
    assert done.err == f"warning: this plan breaks PS201, PS202: parastrat check {path}\n"
    assert typed("check", path).code == 1
    other = typed("emit", path, "--to", "torchrun", "--on", "h100-sxm5x4")
    assert other.err.endswith(f"PS200, PS201, PS202: parastrat check {path} --on h100-sxm5x4\n")
    assert typed("estimate", "gpt2", "--on", "dgx-h100:1", "--tp", "4", "-o", path).code == 0
    assert typed("emit", path, "--to", "torchrun").err == ""


def test_a_tight_plan_is_said_to_be_one_first(typed: Typed) -> None:
    done = typed("recommend", "llama-3.1-70b", "--on", "dgx-h100:1", "--offload", "optimizer")
    assert "over 8 GPUs, within the margin of error: 7" in " ".join(done.out.split())
