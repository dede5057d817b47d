from __future__ import annotations

from pathlib import Path

import pytest
from cli.conftest import Typed

from parastrat.cli.plan_case import PlanSource
from parastrat.cli.run import replanned
from parastrat.errors import UsageError
from parastrat.parse import read_plan

BARE = """\
[plan]
dp_shard = 8
micro_batch_size = 1
gradient_accumulation_steps = 4
precision = "bf16-mixed"
backend = "nccl"
shard = "parameters"
"""


@pytest.fixture
def plan(typed: Typed, tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    assert typed("estimate", "gpt2", "--on", "dgx-a100:2", "-o", path).code == 0
    return path


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    path = tmp_path / "bare.toml"
    path.write_text(BARE, encoding="utf-8")
    return path


def test_one_file_goes_to_stdout_as_it_is(typed: Typed, plan: Path) -> None:
    done = typed("emit", plan, "--to", "torchrun")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("#!/usr/bin/env bash\n")


def test_layers_of_a_preset_are_not_known(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert typed("estimate", "bert-large", "--on", "dgx-a100:1", "--tp", "4", "-o", path).code == 0
    done = typed("emit", path, "--to", "python")
    assert done.code == 2
    assert "bert-large is known by its sizes alone" in done.err
    assert "--model path.py:callable" in done.err


def test_what_is_not_written_in_plain_torch_is_told_with_what_to_change(
    typed: Typed, tmp_path: Path
) -> None:
    path = tmp_path / "plan.toml"
    assert typed("estimate", "llama-3.1-8b", "--on", "dgx-h100:1", "--cp", "2", "-o", path).code == 0
    done = typed("emit", path, "--to", "python")
    assert (done.code, done.out) == (2, "")
    assert "no plain torch for this plan: it is fsdp2+cp" in done.err
    assert "--to torchrun" in done.err


@pytest.mark.parametrize(("model", "named"), [("examples/train_gpt.py:build", "Block"), ("gpt2", None)])
def test_accelerate_is_told_the_blocks_of_own_code(
    model: str, named: str | None, typed: Typed, tmp_path: Path
) -> None:
    """It takes transformers' models by the names that they give theirs."""
    path = tmp_path / "plan.toml"
    words = ("--on", "dgx-a100:1", "--strategy", "fsdp2", "--recompute", "none", "--global-batch", "64")
    assert typed("estimate", model, *words, "--seq-len", "128", "-o", path).code == 0
    done = typed("emit", path, "--to", "accelerate", "-o", tmp_path / "job")
    assert done.code == 0, done.err
    text = (tmp_path / "job" / "accelerate.yaml").read_text()
    lines = [line.split(": ") for line in text.splitlines() if "layer_cls" in line]
    assert [value for _, value in lines] == ([named] if named else [])
    assert typed("check", tmp_path / "job").code == 0


def test_files_and_the_plan_go_to_a_folder(typed: Typed, plan: Path, tmp_path: Path) -> None:
    done = typed("emit", plan, "--to", "slurm", "-o", tmp_path / "job")
    assert (done.code, done.out) == (0, "")
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["job.sbatch", "plan.toml"]
    assert (tmp_path / "job" / "plan.toml").read_text() == plan.read_text()


def test_the_plan_that_was_read_is_left_alone(typed: Typed, plan: Path, tmp_path: Path) -> None:
    plan.write_text(plan.read_text() + "# mine\n", encoding="utf-8")
    before = plan.read_text()
    assert typed("emit", plan, "--to", "slurm", "-o", tmp_path).code == 0
    assert plan.read_text() == before


def test_as_json(typed: Typed, plan: Path) -> None:
    answer = typed("emit", plan, "--to", "python", "--json").answer
    assert answer["target"] == "python"
    assert [file["path"] for file in answer["files"]] == ["parallelize.py"]
    assert answer["written"] == []


def test_a_target_is_guessed_at(typed: Typed, plan: Path) -> None:
    done = typed("emit", plan, "--to", "slrm")
    assert done.code == 2
    assert "did you mean slurm?" in done.err


def test_a_bare_plan_asks_for_the_rest(typed: Typed, bare: Path) -> None:
    done = typed("emit", bare, "--to", "torchrun")
    assert done.code == 2
    assert done.err.endswith("hint: add --model and --on\n")
    assert typed("emit", bare, "--to", "torchrun", "--model", "gpt2").err.endswith("hint: add --on\n")
    whole = typed("emit", bare, "--to", "torchrun", "--model", "gpt2", "--on", "dgx-h100:1")
    assert whole.code == 0
    assert "dp_shard 8" in whole.out


def test_a_script_that_is_not_there(typed: Typed, plan: Path) -> None:
    done = typed("run", plan, "absent.py", "--lr", "3")
    assert done.code == 2
    assert "there is no script absent.py" in done.err


def test_flags_behind_the_plan_are_taken_for_the_script(typed: Typed, plan: Path) -> None:
    done = typed("run", plan, "--nnodes", "2", "train.py")
    assert done.code == 2
    assert "put run's flags before plan.toml" in done.err


def test_a_plan_for_the_devices_at_hand(
    typed: Typed, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.toml"
    job = ("gpt2", "--on", "cpu:4", "--ranks-per-node", "1", "--seq-len", "128", "--global-batch", "8")
    assert typed("estimate", *job, "-o", path).code == 0
    before = path.read_text(encoding="utf-8")
    new = replanned(PlanSource(path=path, parsed=read_plan(path)), None)
    assert new.path == tmp_path / "plan.replanned.toml"
    assert new.plan.mesh.world_size == 1
    assert new.parsed.workload == read_plan(path).workload
    assert path.read_text(encoding="utf-8") == before
    assert "one CPU process; written to" in capfd.readouterr().err


def test_a_plan_that_names_no_model_cannot_be_made_again(bare: Path) -> None:
    with pytest.raises(UsageError, match="does not say for which model"):
        replanned(PlanSource(path=bare, parsed=read_plan(bare)), None)


def test_a_job_for_kubernetes_is_one_file(typed: Typed, plan: Path, tmp_path: Path) -> None:
    words = ("--to", "kubernetes", "--image", "me/train:1", "--script", 'fit.py --name "a b"')
    done = typed("emit", plan, *words, "-o", tmp_path / "job")
    assert (done.code, done.out) == (0, "")
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["trainjob.yaml"]
    text = (tmp_path / "job" / "trainjob.yaml").read_text()
    assert 'image: "me/train:1"' in text
    assert 'args: ["fit.py", "--name", "a b"]' in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "slurm", "--image", "x"), "--image is for --to kubernetes alone"),
        (("--to", "torchrun", "--script", "x.py"), "--script is for --to kubernetes alone"),
        (("--to", "kubernetes", "--image", "a b"), "--image 'a b' is no image's name"),
        (("--to", "kubernetes", "--script", "a 'b"), "No closing quotation"),
        (("--to", "kubernetes", "--script", " "), "--script is empty"),
    ],
)
def test_what_runs_in_pods(typed: Typed, plan: Path, words: tuple[str, ...], message: str) -> None:
    done = typed("emit", plan, *words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err
