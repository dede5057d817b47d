"""``parastrat recommend`` with what is shown on request."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from cli.conftest import Typed

from parastrat.cli.main import main

JOB = ("llama-3.1-8b", "--on", "dgx-h100")


def answered(
    capsys: pytest.CaptureFixture[str], *arguments: str, job: tuple[str, ...] = JOB, code: int = 0
) -> str:
    with pytest.raises(SystemExit) as left:
        main(["recommend", *job, *arguments])
    assert left.value.code == code
    return capsys.readouterr().out


def test_the_front_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Less memory, more time\n" in answered(capsys, "--front")
    assert "Less memory, more time" not in answered(capsys)


def test_no_plan_is_said_of_the_flags_that_fix_one(capsys: pytest.CaptureFixture[str]) -> None:
    asked = answered(capsys, "--micro-batch", "3", "--global-batch", "16", code=1)
    assert asked.startswith("No plan with --micro-batch 3 for llama-3.1-8b can run on 8 GPUs.\n")
    assert "\nfixed: --micro-batch 3\n" in asked
    assert "x 1 data-parallel rank = 15, not the global batch" in " ".join(asked.split())
    named = answered(capsys, "--strategy", "ddp", "--micro-batch", "3", code=1)
    assert named.startswith("No ddp plan with --micro-batch 3 for")
    assert "fixed:" not in answered(capsys)


def test_a_batch_that_is_not_the_published_one_is_said_to_be_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    three = answered(capsys, job=("llama-3.1-405b", "--on", "dgx-h100:48", "--strategy", "fsdp2+tp"))
    assert "384 devices cannot share its 2,048 evenly)" in " ".join(three.split())
    assert "cannot share" not in answered(capsys, job=("gpt2", "--on", "dgx-h100"))


def test_the_front_falls_in_memory_and_rises_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    front = json.loads(answered(capsys, "--front", "--json"))["front"]
    points = [(one["estimate"]["memory"]["total"], one["estimate"]["time"]["step"]) for one in front]
    assert len(points) > 3
    assert all(one[0] > other[0] and one[1] < other[1] for one, other in pairwise(points))
    assert json.loads(answered(capsys, "--json"))["front"] == []


@pytest.mark.parametrize(
    ("model", "on", "said"),
    [
        (
            "llama-3.1-8b",
            "dgx-h100:4",
            "at half of it HSDP + CP (dp_replicate 4 x dp_shard 4 x cp 2) would be",
        ),
        (
            "gpt-oss-120b",
            "hls-gaudi3:4",
            "at half of it FSDP2 + EP (dp_shard 32, ep 8), which is simpler, would be",
        ),
        ("llama-3.1-8b", "dgx-a100:2", "at half and double of it the recommendation stands"),
    ],
)
def test_what_hangs_on_a_rate_that_was_not_measured_is_said(
    capsys: pytest.CaptureFixture[str], model: str, on: str, said: str
) -> None:
    text = " ".join(answered(capsys, job=(model, "--on", on)).split())
    assert "GB/s a device is derived, not measured: " in text
    assert said in text
    doubt = json.loads(answered(capsys, "--json", job=(model, "--on", on)))["network_doubt"]
    assert (doubt["kind"], [each["factor"] for each in doubt["doubts"]]) == ("derived", [0.5, 2.0])
    assert any(each["flips"] for each in doubt["doubts"]) == ("would be" in said)


def test_the_longest_strategy_is_not_broken(capsys: pytest.CaptureFixture[str]) -> None:
    text = answered(capsys, job=("llama-4-scout", "--on", "dgx-h100:8", "--strategy", "fsdp2+cp+tp+ep+pp"))
    assert any(line.startswith("  5*  fsdp2+cp+tp+ep+pp  fits") for line in text.splitlines())


def test_on_one_device_there_is_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    text = answered(capsys, job=("gpt2", "--on", "rtx-4090x1"))
    assert text.count("no such plan over 1 device\n") == 5


def test_within_a_node_there_is_no_such_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert "not measured: " not in answered(capsys)
    assert json.loads(answered(capsys, "--json"))["network_doubt"] is None


def test_a_batch_close_by_that_divides_better_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    # 1,021 is prime: no data ranks divide it
    job = ("llama-3.1-8b", "--on", "dgx-h100:2")
    said = " ".join(answered(capsys, "--global-batch", "1021", job=job).split())
    assert "a global batch of 1,024 instead of 1,021 divides better: " in said
    assert "less for each sample (--global-batch 1024)" in said
    nearby = json.loads(answered(capsys, "--global-batch", "1021", "--json", job=job))["nearby_batch"]
    assert nearby["plan"]["dp_shard"] * nearby["plan"]["dp_replicate"] > 1
    assert json.loads(answered(capsys, "--global-batch", "1024", "--json", job=job))["nearby_batch"] is None


def test_a_loss_in_chunks_is_told_where_it_gains(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("llama-3.1-8b", "--on", "dgx-a100-40:1")
    said = " ".join(answered(capsys, job=job).split())
    assert "with the loss in chunks (chunked_cross_entropy): FSDP2 (dp_shard 8) in " in said
    assert "more, but simpler (--loss-chunks 8)" in said
    other = json.loads(answered(capsys, "--json", job=job))["chunked_loss"]
    asked = json.loads(answered(capsys, "--loss-chunks", "8", "--json", job=job))
    assert asked["plan"] == other["plan"]
    assert asked["workload"]["loss_chunks"] == 8
    assert asked["chunked_loss"] is None


def test_compiled_blocks_are_told_where_they_gain(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("vit-l-16", "--on", "dgx-h100")
    said = " ".join(answered(capsys, job=job).split())
    assert "with torch.compile on every block: " in said
    assert "less (--stack torch-compile)" in said
    other = json.loads(answered(capsys, "--json", job=job))["compiled"]
    asked = json.loads(answered(capsys, "--stack", "torch-compile", "--json", job=job))
    assert (asked["plan"], asked["compiled"]) == (other["plan"], None)
    gain = json.loads(answered(capsys, "--json", job=job))["estimate"]["time"]["step"]
    assert 1.05 * other["estimate"]["time"]["step"] <= gain


@pytest.mark.parametrize(
    "job", [("gpt2", "--on", "dgx-a100"), ("gpt2", "--on", "cpu:2"), ("gpt2", "--stack", "megatron-core")]
)
def test_compiled_blocks_that_gain_nothing_or_are_no_question_are_not_told(
    capsys: pytest.CaptureFixture[str], job: tuple[str, ...]
) -> None:
    on = () if "--on" in job else ("--on", "dgx-a100")
    assert json.loads(answered(capsys, "--json", *on, job=job))["compiled"] is None


def test_offloading_is_told_where_it_gains(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("llama-2-13b", "--on", "8x-rtx-4090:2")
    said = " ".join(answered(capsys, job=job).split())
    assert "with the parameters offloaded to host memory: HSDP (dp_replicate 2 x dp_shard 8) in " in said
    assert "less (--offload parameters), at 25 GB/s to a GPU" in said
    other = json.loads(answered(capsys, "--json", job=job))["offloaded"]
    asked = json.loads(answered(capsys, "--offload", "parameters", "--json", job=job))
    assert (asked["plan"], asked["offloaded"]) == (other["plan"], None)


def test_what_would_fit_offloaded_is_recommended_so_by_the_command_that_is_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = ("llama-3.1-70b", "--on", "dgx-a100:1")
    with pytest.raises(SystemExit) as left:
        main(["recommend", *job])
    assert left.value.code == 1
    command = f"parastrat recommend {' '.join(job)} --offload optimizer"
    assert command in " ".join(capsys.readouterr().out.replace("\\", "").split())
    taken = json.loads(answered(capsys, "--offload", "optimizer", "--json", job=job))
    assert taken["plan"]["offload"] == "optimizer"


@pytest.mark.parametrize(
    ("job", "fixed", "command"),
    [
        # the flags that go leave what is offloaded
        ("llama-3.1-70b --on dgx-h100:1", "--strategy fsdp2 --offload optimizer", " --offload optimizer"),
        ("llama-3.1-8b --on h100x1", "--offload optimizer", " --offload parameters"),
    ],
)
def test_commands_for_what_would_fit_say_what_is_offloaded(
    capsys: pytest.CaptureFixture[str], job: str, fixed: str, command: str
) -> None:
    with pytest.raises(SystemExit):
        main(["recommend", *job.split(), *fixed.split()])
    said = " ".join(capsys.readouterr().out.replace("\\", "").split())
    assert f"parastrat recommend {job}{command}" in said
    assert answered(capsys, *command.split(), job=tuple(job.split()))


def test_offloading_is_no_other_plan_that_was_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("gpt2", "--on", "h100x1")
    rungs = [
        json.loads(answered(capsys, "--json", *more, job=job))["rungs"]
        for more in ((), ("--offload", "optimizer"))
    ]
    reasons = [[rung["reason"] for rung in each[1:]] for each in rungs]
    assert reasons[0] == reasons[1]
    assert not any("another plan" in reason for reason in reasons[1])


def test_what_auto_parallelize_applies_instead_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    # parts of compiled blocks are computed again beside an axis with which that is not applied
    job = ("llama-3.1-8b", "--on", "dgx-a100:8", "--global-batch", "64", "--seq-len", "131072")
    job = (*job, "--stack", "torch-compile")
    said = " ".join(answered(capsys, job=job).replace("\\", "").split())
    assert "auto_parallelize itself applies " in said
    assert said.endswith("--stack torch-compile --applied -o plan.toml")
    told = json.loads(answered(capsys, "--json", job=job))["applied"]["recommended"]
    answer = json.loads(answered(capsys, "--applied", "--json", job=job))
    assert (told["plan"], answer["applied"]) == (answer["plan"], None)
    last = answered(capsys, "--applied", job=job).replace("\\", "").split()[-3:]
    assert last == ["--applied", "-o", "plan.toml"]


def test_where_none_of_what_it_applies_can_run_that_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    job = ("llama-3.1-8b", "--on", "dgx-h100:8", "--precision", "fp8")
    said = " ".join(answered(capsys, job=job).split())
    assert "of the plans that auto_parallelize applies itself none can run" in said
    assert "--applied" not in said
    assert json.loads(answered(capsys, "--json", job=job))["applied"] == {"recommended": None}


def test_where_hosts_have_too_little_memory_theirs_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    text = answered(capsys, "--offload", "parameters", job=("llama-3.1-70b", "--on", "dgx-1v"), code=1)
    said = r"the nearest needs 1,0\d\d of 512 GiB a host, beside [23]\d\.\d of 31\.5 GiB a GPU\."
    assert re.search(said, " ".join(text.split()))
    row = next(line for line in text.splitlines() if line.startswith("  4 "))
    assert re.search(r"does not fit +[23]\d\.\d +- +a host needs 1,0\d\d of its 512 GiB", row)


def test_the_command_that_writes_the_plan_decides_by_the_same_tolerance(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = answered(capsys, "--tolerance", "2")
    assert "Train llama-3.1-8b with FSDP2 over" in text
    command = next(line for line in text.splitlines() if line.endswith("-o plan.toml"))
    assert command.split() == ["parastrat", "recommend", *JOB, "--tolerance", "2", "-o", "plan.toml"]


@pytest.mark.parametrize(
    ("job", "tools"),
    [
        (("gpt-oss-120b", "--on", "hls-gaudi3:4"), "(hccl_demo, ib_write_bw)"),
        (("bert-base", "--on", "cpu:1000"), "(iperf3)"),
    ],
)
def test_a_network_is_measured_by_what_runs_there(
    capsys: pytest.CaptureFixture[str], job: tuple[str, ...], tools: str
) -> None:
    """nccl-tests was named for processors and Gaudis, too."""
    page = " ".join(answered(capsys, job=job).split())
    assert f"measure it between two nodes {tools}" in page


def test_a_convolutional_network_is_known_to_have_no_heads(capsys: pytest.CaptureFixture[str]) -> None:
    page = answered(capsys, job=("resnet-50", "--on", "dgx-h100"))
    assert "heads are unknown" not in page
    assert "the model has no attention heads" in " ".join(page.split())


def test_a_processors_peak_is_of_no_datasheet(typed: Typed) -> None:
    page = " ".join(typed("estimate", "gpt2", "--on", "cpu:1").out.split())
    assert "% of a peak that is assumed (MFU)" in page
    assert "% of the datasheet (MFU)" in " ".join(typed("estimate", "gpt2", "--on", "t4x1").out.split())


def test_plans_of_one_mesh_are_told_apart(typed: Typed) -> None:
    """Both were called SINGLE (1)."""
    told = [
        " ".join(typed("why-not", "gpt2", *words).out.split())
        for words in (
            ("--on", "rtx-4090x1", "--offload", "optimizer"),
            ("--on", "dgx-h100:1", "--strategy", "ddp", "--micro-batch", "4"),
            ("--on", "rtx-4090x1", "--micro-batch", "512"),
        )
    ]
    assert re.match(
        r"One GPU can run, and takes [\d.]+ % longer than the recommended plan of the same", told[0]
    )
    assert re.match(
        r"DDP \(dp_replicate 8\) can run, and takes [\d.]+ % longer than the recommended", told[1]
    )
    assert told[2].startswith("Not one GPU: it does not fit")
