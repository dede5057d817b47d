"""``parastrat verify`` as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runtime.dry_run.plans import PLAN

from parastrat.cli.main import main

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked")]

MODELS = Path(__file__).resolve().parents[1] / "runtime" / "dry_run" / "models.py"
SCRIPT = str(MODELS.with_name("training_script.py"))


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        main(["verify", *arguments])
    return int(left.value.code or 0)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(PLAN, encoding="utf-8")
    return path


def test_memory_collectives_and_the_verdict_are_shown(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(str(plan_file), "--model", f"{MODELS}:Chain", "--on", "h100-sxm5x4") == 0
    out = capsys.readouterr().out
    assert "Dry run of fsdp2 for" in out
    assert "rank 0 of 4 (dp_shard 4)" in " ".join(out.split())
    assert "peak of forward and backward" in out
    assert "reduce_scatter_base" in out
    assert "\nfits: " in out


def test_json_is_one_object(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(str(plan_file), "--model", f"{MODELS}:Chain", "--on", "h100-sxm5x4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "parastrat.verification/1"
    (rank,) = found["ranks"]
    assert rank["peak"] == max(rank["forward_backward"], rank["optimizer_step"])
    assert found["needed"] == rank["peak"] + found["overhead"]
    assert found["fits"] is True


def test_rules_that_the_plan_breaks_are_told_first_and_exit_1(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (str(plan_file), "--model", f"{MODELS}:Chain", "--on", "h100-sxm5x8")
    assert ended(*given) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("The plan breaks 1 rule of severity error. Findings")
    assert "PS200 error: pp 1 x dp_replicate 1 x dp_shard 4" in out.partition("Dry run of fsdp2")[0]
    assert "fits, but breaks the rules above:" in out
    assert ended(*given, "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["fits"], answer["findings"][0]["code"]) == (True, "PS200")


def test_ranks_can_be_chosen(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--rank", "1,3", str(plan_file), "--model", f"{MODELS}:Chain", "--on", "h100-sxm5x4") == 0
    assert "ranks 1, 3 of 4" in " ".join(capsys.readouterr().out.split())
    assert ended("--rank", "4", str(plan_file), "--model", f"{MODELS}:Chain", "--on", "h100-sxm5x4") == 2
    assert "names no ranks of 4" in capsys.readouterr().err


def test_real_tensors_on_the_host(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = (str(plan_file), "--model", f"{MODELS}:Chain", "--on", "h100-sxm5x4")
    assert ended("--real", "--device", "cpu", *given) == 0
    assert "one step on real tensors of cpu" in " ".join(capsys.readouterr().out.split())
    assert ended("--device", "cpu", *given) == 2
    assert "--device is of --real" in capsys.readouterr().err
    assert ended("--real", "--", "python", SCRIPT, "fsdp2") == 2
    assert "--real is of plans" in capsys.readouterr().err


def test_a_script_is_run_as_it_is_launched(capsys: pytest.CaptureFixture[str]) -> None:
    launch = ("torchrun", "--nproc", "4", SCRIPT, "fsdp2", "--read")
    assert ended("--on", "h100-sxm5x4", "--", *launch) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "rank 0 of 4, up to optimizer step 2 on fake tensors" in out
    assert "reduce_scatter_base 4 4" in out
    assert "reads a value of the device, which is not there: taken as 1.0" in out
    assert "fits: 0.00 of 79." in out


def test_a_scripts_json_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    launch = ("torchrun", "--nproc", "4", SCRIPT, "fsdp2")
    assert ended("--json", "--rank", "0,2", "--steps", "1", "--", *launch) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "parastrat.script_run/1"
    assert [each["rank"] for each in found["ranks"]] == [0, 2]
    assert found["peak"] == max(each["peak"] for each in found["ranks"])
    assert (found["world_size"], found["steps"], found["fits"]) == (4, 1, None)


def test_a_script_that_does_not_train_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended("--", "python", SCRIPT, "fsdp2", "--nothing") == 2
    assert "ended without an optimizer step" in capsys.readouterr().err


def test_a_plan_that_cannot_be_dry_run_exits_2(plan_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan_file.write_text(PLAN.replace("dp_shard = 4", "dp_shard = 4\nep = 2\ntp = 3"), encoding="utf-8")
    assert ended(str(plan_file), "--model", f"{MODELS}:Chain", "--on", "h100-sxm5x4") == 2
    told = capsys.readouterr()
    assert "does not apply ep 2 beside tp 3, of which none divides the other" in told.err
    # what it breaks is told all the same, and no dry run is promised that does not come
    assert "dry" not in told.out
