from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from report.answers import CONTEXT, fsdp2, nothing, pipelined, taken

from parastrat.hardware import DeviceType, FigureKind, Host, Provenance
from parastrat.plan import Offload
from parastrat.profiles import load_hardware
from parastrat.report.advice import wrapped_command
from parastrat.report.bars import Part, Ruler, bar_lines
from parastrat.report.breakdown import plan_lines
from parastrat.report.commands import (
    estimate_command,
    next_steps,
    plan_flags,
    recommend_command,
    steps_to_fit,
    typed,
)
from parastrat.report.ladder_table import rejected_lines
from parastrat.report.nearest_fit import nearest_lines
from parastrat.report.numbers import count, duration, gib, percent, rate, size
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Paper, rendered, wrapped
from parastrat.report.wording import hardware_words, offload_words
from parastrat.result import Applied, NearestFit, Rejection
from parastrat.units import GIB, MIB
from parastrat.workload import Optimizer, Precision


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (4357.2, "4,357 s"),
        (64.04, "64.0 s"),
        (5.811, "5.81 s"),
        (0.9999, "1.00 s"),
        (0.999, "999 ms"),
        (0.0122, "12.2 ms"),
        (5.2e-5, "52.0 us"),
        (4e-7, "0.40 us"),
        (0.0, "0 s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_other_numbers() -> None:
    assert [gib(part * GIB) for part in (1315.3, 79.14, 0.031)] == ["1,315", "79.1", "0.03"]
    assert [size(part) for part in (30 * MIB, 79.1 * GIB)] == ["30 MiB", "79.1 GiB"]
    assert [percent(share) for share in (0.412, 0.021, 0.0, 1.5)] == ["41 %", "2.1 %", "0 %", "150 %"]
    assert [percent(share) for share in (0.001, 0.0002, -0.0002, 0.00003)] == [
        "0.1 %",
        "0.02 %",
        "-0.02 %",
        "<0.01 %",
    ]
    assert [count(number) for number in (70_553_706_496, 124_439_808, 9999)] == ["70.6 B", "124 M", "9,999"]
    assert [rate(number) for number in (8466.2, 43.61, 1.234)] == ["8,466", "43.6", "1.23"]


def _rows(parts: list[Part], ruler: Ruler | None = None, *, blocks: bool = False) -> list[str]:
    paper = Paper(width=66, blocks=blocks)
    return rendered(bar_lines(parts, paper, written=str, ruler=ruler), paper).splitlines()


def test_each_part_starts_where_the_one_above_ends() -> None:
    first, second, third = _rows([Part(name=name, amount=1) for name in "abc"])
    bars = [row[25:] for row in (first, second, third)]
    ends = [len(bar) for bar in bars]
    starts = [len(bar) - len(bar.lstrip()) for bar in bars]
    assert starts == [0, *ends[:2]]
    assert ends[2] == 40


def test_the_ruler_shows_what_sticks_out() -> None:
    bar, ruler = _rows([Part(name="used", amount=200)], Ruler(name="usable", amount=100))
    assert len(ruler[25:]) == 20
    assert len(bar[25:]) == 40
    bar, ruler = _rows([Part(name="used", amount=50)], Ruler(name="usable", amount=100))
    assert (len(bar[25:]), len(ruler[25:])) == (20, 40)


def test_a_part_too_small_to_draw_is_marked_and_nothing_is_not() -> None:
    rows = _rows([Part(name="all", amount=1e6), Part(name="little", amount=1), Part(name="none", amount=0)])
    assert rows[1].endswith("|")
    assert rows[2].endswith("0")


def test_no_bar_of_nothing() -> None:
    assert _rows([Part(name="none", amount=0)]) == []


def test_numbers_stay_whole_where_text_wraps() -> None:
    columns = (Column(title="GiB", fill=Fill.NUMBER), Column(title="why", fill=Fill.REST))
    paper = Paper(width=60)
    page = rendered(table_lines(columns, [Row(cells=("1,315", "word " * 20))], paper), paper)
    lines = page.splitlines()
    assert lines[1].startswith("  1,315  word")
    assert lines[2].startswith("         word")
    assert max(map(len, lines)) <= 60


def test_a_command_is_broken_between_flags() -> None:
    paper = Paper(width=60)
    command = typed(
        "estimate", "small", "--on", "cluster:2", "--global-batch", "64", "--tp", "16", "--pp", "4"
    )
    page = rendered(wrapped_command(command, paper), paper)
    assert page.replace("\\\n", "").split() == command.split()
    assert all(row.endswith("\\") for row in page.splitlines()[:-1])
    assert not any(row.endswith(("--tp \\", "--on \\", "--pp \\")) for row in page.splitlines())


def test_a_number_stays_with_its_unit() -> None:
    for width in range(20, 40):
        page = rendered(
            wrapped("a peak of 61.2 GiB, 12.3 ms a step, 41 % MFU", Paper(width=width)), Paper()
        )
        for whole in ("61.2 GiB", "12.3 ms", "41 %"):
            assert whole in page


def test_paths_are_quoted() -> None:
    assert typed("run", "my plans/plan.toml") == "parastrat run 'my plans/plan.toml'"


def test_flags_of_a_plan_give_it_again() -> None:
    assert plan_flags(pipelined().plan) == [
        *("--pp", "4", "--dp-shard", "2", "--tp", "2"),
        *("--micro-batch", "1", "--recompute", "none"),
    ]


def test_what_auto_parallelize_does_not_apply_is_not_sent_to_run() -> None:
    steps = next_steps(pipelined(), CONTEXT, "parastrat recommend small -o plan.toml")
    assert [step.purpose for step in steps][1:] == ["or the best plan that auto_parallelize applies itself"]
    assert steps[1].command.endswith(" --applied -o plan.toml")
    fixed = replace(CONTEXT, fixed=("--cp", "2", "--micro-batch", "1", "--strategy", "fsdp2+cp"))
    assert next_steps(pipelined(), fixed, "")[1].command.endswith(" --micro-batch 1 --applied -o plan.toml")
    none = next_steps(pipelined(), CONTEXT, "parastrat recommend small -o plan.toml", Applied(case=None))
    assert len(none) == 1
    assert len(next_steps(fsdp2(), CONTEXT, "parastrat recommend small -o plan.toml")) == 1


def test_of_a_written_plan_that_is_not_applied_another_is_the_only_step() -> None:
    (step,) = next_steps(pipelined(), replace(CONTEXT, plan_file="plan.toml"), "")
    assert step.purpose == "the best plan that auto_parallelize applies itself"


def test_commands_decide_as_the_readers_did() -> None:
    context = replace(CONTEXT, deciding=("--tolerance", "2"))
    assert recommend_command(context, "--tp", "2") == (
        "parastrat recommend small --on cluster:2 --global-batch 64 --tolerance 2 --tp 2"
    )
    assert "--tolerance 2 --applied" in next_steps(pipelined(), context, "")[1].command
    # estimate has no such flag
    assert "--tolerance" not in estimate_command(context, fsdp2().plan)


def test_a_written_plan_is_started_as_its_nodes_need() -> None:
    written = replace(CONTEXT, plan_file="plan.toml")
    (step,) = next_steps(fsdp2(), written, "")
    assert step.command == "parastrat emit plan.toml --to slurm -o job"
    alone = replace(fsdp2(), launch=replace(fsdp2().launch, nodes=1))
    (step,) = next_steps(alone, written, "")
    assert step.command == "parastrat run plan.toml YOUR_SCRIPT.py"


def test_what_would_fit_is_asked_for_by_its_flags() -> None:
    larger = replace(fsdp2(), hardware=replace(fsdp2().hardware, name="cluster:4", num_nodes=4))
    workload = replace(fsdp2().workload, sequence_length=512, global_batch_size=128)
    shorter = replace(fsdp2(), workload=workload)
    offloaded = replace(fsdp2(), plan=replace(fsdp2().plan, offload=Offload.OPTIMIZER))
    fits = tuple(NearestFit(changes=("so",), case=case) for case in (offloaded, fsdp2(), shorter, larger))
    result = replace(nothing(), nearest_fit=fits)
    fixed = replace(CONTEXT, fixed=("--tp", "2"))
    assert [step.command for step in steps_to_fit(result, fixed)] == [
        "parastrat recommend small --on cluster:2 --global-batch 64 --tp 2 --offload optimizer",
        "parastrat recommend small --on cluster:2 --global-batch 64",
        "parastrat recommend small --on cluster:2 --global-batch 128 --seq-len 512 --tp 2",
        "parastrat recommend small --on cluster:4 --global-batch 64 --tp 2",
    ]
    states = replace(fsdp2(), workload=replace(fsdp2().workload, optimizer=Optimizer.ADAMW_8BIT))
    smaller = replace(result, nearest_fit=(NearestFit(changes=("so",), case=states),))
    assert [step.command for step in steps_to_fit(smaller, CONTEXT)] == [
        "parastrat recommend small --on cluster:2 --global-batch 64 --optimizer adamw-8bit",
    ]
    usual = replace(fsdp2(), workload=replace(fsdp2().workload, precision=Precision.FP16_MIXED))
    other = replace(result, nearest_fit=(NearestFit(changes=("so",), case=usual),))
    assert [step.command for step in steps_to_fit(other, CONTEXT)] == [
        "parastrat recommend small --on cluster:2 --global-batch 64 --precision fp16-mixed",
    ]
    here = replace(CONTEXT, arguments=("small",))
    assert [step.command for step in steps_to_fit(result, here)] == [
        "parastrat recommend small --offload optimizer",
        "parastrat recommend small --seq-len 512 --global-batch 128",
    ]


def test_hardware_that_was_probed_is_named_by_what_was_found() -> None:
    assert hardware_words(fsdp2().hardware) == "cluster:2: 2 nodes of 8 GPUs (gpu)"
    assert hardware_words(load_hardware("dgx-h100")) == "dgx-h100: 1 node of 8 GPUs (h100-sxm5)"
    # a plan of one device leaves the others idle: neither nodes nor links of the cluster are its own
    idle = replace(load_hardware("dgx-h100:2"), devices_per_node=1, num_nodes=1, scale_up_devices=1)
    assert hardware_words(idle) == "one GPU of dgx-h100:2 (h100-sxm5)"
    assert hardware_words(load_hardware("h100x1")) == "one GPU of h100-sxm5x1 (h100-sxm5)"
    process = replace(idle, name="cpu:2", device=replace(idle.device, type=DeviceType.CPU, name="cpu"))
    assert hardware_words(process) == "one CPU process with all cores of cpu:2 (cpu)"
    generic = hardware_words(load_hardware("h100x4:2"))
    assert generic == "h100-sxm5x4:2: 2 nodes of 4 GPUs (h100-sxm5; links are assumed)"
    probed = replace(fsdp2().hardware, name="auto: 2 CPU processes on 2 cores, 23.5 GiB")
    assert hardware_words(probed) == probed.name


@pytest.mark.parametrize(
    ("speed", "words"),
    [
        (0.876, "so: costs about 12 % of the tokens per second"),
        (0.9971, "so: costs no speed"),
        (1.034, "so: gains about 3.4 % of the tokens per second"),
        (2.5, "so: makes about 2.50 times the tokens per second"),
    ],
)
def test_what_a_change_costs_is_a_figure(speed: float, words: str) -> None:
    fit = NearestFit(changes=("so",), case=fsdp2(), speed=speed, speed_each=speed)
    text = rendered(nearest_lines(replace(nothing(), nearest_fit=(fit,)), Paper(width=100)), Paper())
    assert f"  - {words}\n" in text


def test_a_change_that_nothing_is_held_against_has_no_figure() -> None:
    result = replace(nothing(), nearest_fit=(NearestFit(changes=("so",), case=fsdp2()),), memory_aside=None)
    text = rendered(nearest_lines(result, Paper()), Paper())
    assert "  - so\n" in text
    assert "Costs are" not in text
    none = rendered(nearest_lines(replace(result, nearest_fit=()), Paper()), Paper())
    assert "No change that was tried makes it fit" in none
    assert "Most plans are left out by PS201: use a tp that divides 16." in " ".join(none.split())


def test_rates_of_what_is_offloaded_are_told_and_which_are_assumed() -> None:
    """All of the made-up machine's figures are stated but that of the host's memory."""
    plain = fsdp2()

    def shown(**device: Any) -> str:
        hardware = replace(plain.hardware, device=replace(plain.hardware.device, **device))
        made = replace(plain, hardware=hardware, plan=replace(plain.plan, offload=Offload.PARAMETERS))
        return " ".join(rendered(plan_lines(made, Paper(width=200)), Paper(width=200)).split())

    assumed = "as much in the host's memory for each (assumed: nothing is known of it)"
    assert f"offload 20 GB/s to a GPU, {assumed}" in shown()
    assert "2,000 GB/s to a GPU (assumed, as fast as its own memory" in shown(host_bytes_per_s=None)
    entry = Provenance(field="host_bytes_per_s", kind=FigureKind.ASSUMED, source="a guess")
    assert "20 GB/s to a GPU (assumed), as much" in shown(provenance=(entry,))
    known = replace(plain.hardware, host=Host(memory_bytes_per_s=4.5e11))
    offloading = replace(plain, hardware=known, plan=replace(plain.plan, offload=Offload.PARAMETERS))
    rates = "20 GB/s to a GPU, 450 GB/s in the host's memory"
    assert offload_words(offloading).startswith(f"{rates}; a host needs ")
    assert offload_words(offloading).endswith(" GiB, how much it has is unknown")
    small = replace(offloading, hardware=replace(known, host=Host(memory_bytes=64 * GIB)))
    assert offload_words(small).endswith(" GiB, it has 64.0 GiB")
    assert "assumed" not in " ".join(rendered(plan_lines(plain, Paper()), Paper()).split())
    fit = NearestFit(
        changes=("so",), case=replace(plain, plan=replace(plain.plan, offload=Offload.OPTIMIZER))
    )
    lines = nearest_lines(replace(nothing(), nearest_fit=(fit,)), Paper(width=200))
    text = " ".join(rendered(lines, Paper(width=200)).split())
    assert f"with 20 GB/s to a GPU, {assumed}" in text


def test_the_batch_that_would_do_is_told_where_plans_have_too_few_samples() -> None:
    few = Rejection(code="PS401", title="few", count=53, example="less than one", fix="use a batch of 16")
    heads = replace(few, code="PS201", fix="use tp 4")
    text = rendered(rejected_lines(replace(taken(), rejected=(few, heads)), Paper()), Paper())
    assert "  PS401: use a batch of 16\n" in text
    assert "use tp 4" not in text
    # of those that something else leaves out a larger batch is none of the reader's concerns
    others = rendered(rejected_lines(replace(taken(), rejected=(heads, few)), Paper()), Paper())
    assert "use a batch of 16" not in others
