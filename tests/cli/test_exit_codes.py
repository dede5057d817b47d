"""0 is done, 1 is "no", 2 is bad usage; with ``--json`` stdout is one object in every case."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from cli.conftest import Typed

from parastrat.parse import read_plan

NODE = ("--on", "dgx-a100:1")
LARGE = ("recommend", "llama-3.1-405b", *NODE)


def test_a_recommendation_is_done(typed: Typed) -> None:
    done = typed("recommend", "gpt2", *NODE)
    assert done.code == 0
    assert done.out.startswith("Train gpt2 with ")
    assert done.err == ""


def test_nothing_fits(typed: Typed) -> None:
    done = typed(*LARGE)
    assert done.code == 1
    assert done.out.startswith("No plan for llama-3.1-405b fits on 8 GPUs")
    assert "What would fit" in done.out


def test_nothing_fits_as_json(typed: Typed) -> None:
    done = typed(*LARGE, "--json")
    assert done.code == 1
    assert (done.answer["plan"], done.answer["fits"]) == (None, False)
    assert done.answer["nearest_fit"]


def test_nothing_is_written_when_nothing_fits(typed: Typed, tmp_path: Path) -> None:
    assert typed(*LARGE, "-o", tmp_path / "plan.toml").code == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        (("gpt2", *NODE), 0),
        # 12 heads
        (("gpt2", *NODE, "--tp", "8"), 1),
        (("llama-3.1-70b", *NODE, "--strategy", "ddp"), 1),
        (("gpt2", *NODE, "--tp", "3"), 2),
        (("gpt2", *NODE, "--dp-replicate", "2", "--dp-shard", "2"), 2),
    ],
)
@pytest.mark.parametrize("json_flag", [(), ("--json",)])
def test_estimates(typed: Typed, flags: tuple[str, ...], code: int, json_flag: tuple[str, ...]) -> None:
    done = typed("estimate", *flags, *json_flag)
    assert done.code == code, done.err
    if code == 2:
        assert done.out == ""
    elif json_flag:
        assert done.answer["schema"] == "parastrat.estimate/1"
        broken = any(finding["severity"] == "error" for finding in done.answer["findings"])
        assert (broken or not done.answer["fits"]) is (code == 1)


def test_a_bad_plan_is_written_all_the_same(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    assert typed("estimate", "gpt2", *NODE, "--tp", "8", "-o", path).code == 1
    plan = read_plan(path).plan
    assert plan is not None
    assert plan.mesh.tp == 8


@pytest.mark.parametrize(
    ("flags", "strategy"),
    [
        ((), "fsdp2"),
        (("--strategy", "ddp"), "ddp"),
        (("--dp-shard", "4"), "hsdp"),
        (("--tp", "4"), "fsdp2+tp"),
        (("--strategy", "zero1"), "zero1"),
    ],
)
def test_data_axes_take_the_other_ranks(typed: Typed, flags: tuple[str, ...], strategy: str) -> None:
    plan = typed("estimate", "gpt2", *NODE, *flags, "--json").answer["plan"]
    assert plan["strategy"] == strategy
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    product = 1
    for axis in axes:
        product *= plan[axis]
    assert product == 8


def test_a_strategy_that_no_rung_has(typed: Typed) -> None:
    done = typed("recommend", "resnet-50", *NODE, "--strategy", "tp")
    assert done.code == 1
    assert "No tp plan for resnet-50 can run" in done.out
    assert "no rung has a plan that is tp" in done.out


def test_what_is_fixed_stays_fixed(typed: Typed) -> None:
    flags = ("--micro-batch", "2", "--recompute", "full", "--precision", "bf16", "--optimizer", "sgd")
    answer = typed("recommend", "gpt2", *NODE, *flags, "--global-batch", "64", "--json").answer
    plan = answer["plan"]
    assert (plan["micro_batch_size"], plan["recompute"], plan["precision"]) == (2, "full", "bf16")
    assert answer["workload"]["global_batch_size"] == 64
    assert answer["workload"]["assumed"] == ["sequence_length"]


def test_why_not_a_plan_that_cannot_run(typed: Typed) -> None:
    done = typed("why-not", "gpt2", *NODE, "--tp", "8")
    assert done.code == 1
    assert done.out.startswith("Not ")
    assert "Findings" in done.out


def test_a_plan_that_breaks_a_rule_is_not_offered_all_the_same(typed: Typed) -> None:
    done = typed("why-not", "llama-3.1-8b", "--on", "dgx-h100:1", "--ep", "2")
    assert done.code == 1
    assert "breaks 1 rule" in " ".join(done.out.split())
    assert "take this plan all the same" not in done.out


def test_why_not_a_slower_plan(typed: Typed) -> None:
    done = typed("why-not", "gpt2", *NODE, "--tp", "4", "--json")
    assert done.code == 0
    assert done.answer["plan"]["tp"] == 4
    assert done.answer["recommended"]["plan"]["tp"] == 1


def test_explain_as_json(typed: Typed) -> None:
    done = typed("explain", "ps101", "--json")
    assert done.code == 0
    assert done.answer["code"] == "PS101"
    codes = [rule["code"] for rule in typed("explain", "--json").answer["rules"]]
    assert codes == sorted(codes)
    assert "PS101" in codes


def test_explain_teaches(typed: Typed) -> None:
    page = typed("explain", "PS203").out
    for part in ("PS203: ", "severity   warning", "source     https://", "covers     PIT", "example    "):
        assert part in page


def test_a_written_plan_repeats_the_answer(typed: Typed, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    answer = typed("recommend", "gpt2", *NODE, "--json", "-o", path).answer
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert table["model"]["ref"] == "gpt2"
    assert table["plan"]["strategy"] == answer["plan"]["strategy"]
    assert table["estimate"]["memory"]["total"] == answer["estimate"]["memory"]["total"]


def test_piped_reports_are_plain_and_narrow(typed: Typed) -> None:
    page = typed("recommend", "gpt2", *NODE).out
    assert "\033" not in page
    assert max(map(len, page.splitlines())) <= 80


def test_an_interrupt_is_told_by_the_exit_code(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("parastrat.cli.facts.load_hardware", interrupted)
    assert typed("recommend", "gpt2", *NODE).code == 130


def test_figures_in_a_plan_file_are_those_of_the_profile(typed: Typed, tmp_path: Path) -> None:
    """66.9 TFLOP/s stood there as 66900000000000.01."""
    path = tmp_path / "plan.toml"
    typed("estimate", "gpt2", "--on", "dgx-h100:2", "-o", path)
    hardware = path.read_text(encoding="utf-8").partition("[workload]")[0]
    assert "fp32 = 66900000000000.0\n" in hardware
    assert "start_s = 7.552e-06\n" in hardware


def test_one_of_a_thing_is_no_plural(typed: Typed) -> None:
    one = typed("recommend", "gpt2", "--on", "h100x1", "--global-batch", "1").out
    assert "given: global batch 1 sequence\n" in one
    assert "of 1 plans" not in one
    assert "do not divide 1 device (" in typed("recommend", "gpt2", "--on", "h100x1", "--pp", "2").err
