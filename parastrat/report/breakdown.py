"""Where one plan's memory and time go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.hardware import DeviceType, kind_of
from parastrat.plan import Offload
from parastrat.report.bars import Part, Ruler, bar_lines
from parastrat.report.headline import VERDICT_TONES, VERDICT_WORDS
from parastrat.report.numbers import count, duration, gib, percent, rate, size
from parastrat.report.text import Line, Tone, heading, labelled
from parastrat.report.wording import (
    a_device,
    batch_words,
    device_word,
    hardware_words,
    offload_words,
    option_words,
)
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.report.text import Paper

_TIME_NAMES = {
    "tp_exposed": "tp waits",
    "cp_exposed": "cp waits",
    "ep_exposed": "ep waits",
    "dp_exposed": "dp waits",
    "pp_bubble": "pp bubble",
    "pp_exposed": "pp waits",
}


def plan_lines(case: Case, paper: Paper) -> list[Line]:
    """Return the job and the plan, setting by setting."""
    plan, model, hardware = case.plan, case.model, case.hardware
    world = plan.mesh.world_size
    lines = heading("Plan", paper)
    active = (
        "" if model.active_parameters == model.parameters else f", {count(model.active_parameters)} active"
    )
    described = f"{model.name}, {count(model.parameters)} parameters{active}, {model.layers} layers"
    lines += labelled("model", described, paper)
    lines += labelled("hardware", hardware_words(hardware), paper)
    ranks = f"{world:,} {'rank' if world == 1 else 'ranks'}"
    lines += labelled("mesh", ranks if world == 1 else f"{plan.mesh} = {ranks}", paper)
    lines += labelled("batch", batch_words(plan), paper)
    formats = f"{plan.precision.value}, {case.workload.optimizer.value}, stack {case.stack.name}"
    lines += labelled("formats", formats, paper)
    lines += labelled("options", ", ".join(option_words(plan)), paper)
    return (
        lines if plan.offload is Offload.NONE else lines + labelled("offload", offload_words(case), paper)
    )


def memory_lines(case: Case, paper: Paper) -> list[Line]:
    """Return the peak's composition as a bar against the device's usable memory."""
    memory = case.estimate.memory
    title = (
        f"Memory at the peak of the fullest {device_word(case.hardware)}: {size(memory.total)} "
        f"of {size(memory.capacity)}, {VERDICT_WORDS[memory.verdict]}"
    )
    tone = VERDICT_TONES[memory.verdict]
    parts = [Part(name=name, amount=amount, tone=tone) for name, amount in memory.parts.items()]
    margin = Part(name="margin", amount=memory.margin, tone=Tone.FAINT, hollow=True)
    lines = heading(title, paper)
    return lines + bar_lines(
        [*parts, margin],
        paper,
        written=lambda amount: gib(amount) if amount else "-",
        ruler=Ruler(name="usable", amount=memory.capacity),
    )


def _peak(case: Case) -> str:
    """Name the rate that MFU is a share of; a processor's is none of a datasheet."""
    device, precision = case.hardware.device, case.plan.precision
    if device.type is not DeviceType.CPU:
        return "the datasheet"
    field = "peak.fp32" if precision is Precision.FP32 else "peak.bf16"
    return f"a peak that is {kind_of(device.provenance, field).value}"


def time_lines(case: Case, paper: Paper) -> list[Line]:
    """Return the step's composition as a bar; parts that take no time are left out."""
    time, estimate = case.estimate.time, case.estimate
    title = (
        f"Time of a step: {duration(time.step)} "
        f"(80 % between {duration(time.step_low)} and {duration(time.step_high)})"
    )
    parts = [
        Part(
            name=_TIME_NAMES.get(name, name),
            amount=amount,
            tone=Tone.GOOD if name == "compute" else Tone.CAUTION,
        )
        for name, amount in time.parts.items()
        if amount > 0
    ]
    units = "samples" if case.workload.sequence_length is None else "tokens"
    flops = f"{rate(estimate.model_tflops_per_gpu)} model TFLOP/s"
    speed = [f"{rate(estimate.tokens_per_s_per_gpu)} {units}/s and {flops} {a_device(case.hardware)}"]
    if estimate.mfu is not None:
        speed.append(f"{percent(estimate.mfu)} of {_peak(case)} (MFU)")
    lines = heading(title, paper)
    lines += bar_lines(parts, paper, written=duration)
    return lines + labelled("speed", ", ".join(speed), paper, width=11)
