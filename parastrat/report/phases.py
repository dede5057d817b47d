"""Memory through a step as a picture, and in words what takes the room at the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.report.headline import VERDICT_TONES
from parastrat.report.numbers import gib
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, Span, Tone, heading, wrapped
from parastrat.report.wording import device_word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case
    from parastrat.memory.phases import Phase, RankMemory
    from parastrat.report.text import Paper

#: a bar's strokes: name, parts of ``MemoryEstimate``, and what draws them with and without block characters
_STROKES = (
    ("states", ("parameters", "gradients", "optimizer"), "\u2588#"),
    ("activations", ("activations",), "\u2593="),
    ("transient", ("transient",), "\u2592+"),
    ("overhead", ("overhead",), "\u2591."),
)
_PEAK = " < peak"
_LONGEST = 80
_NUMBER = 6
#: more rows than this are thinned out
_MOST_ROWS = 24
_MOST_NAME = 34


def phase_lines(case: Case, ranks: Sequence[RankMemory], paper: Paper) -> list[Line]:
    """Return what the fullest device holds through a step as bars, and the peaks of a pipeline's ranks."""
    fullest = max(ranks, key=lambda rank: rank.peak.total)
    lines = heading(f"Memory through a step of the fullest {device_word(case.hardware)}", paper)
    if case.plan.mesh.pp > 1:
        lines += wrapped(_whose(fullest), paper, first="  ", tone=Tone.FAINT)
    lines += _picture(case, fullest, paper)
    if len(ranks) > 1:
        lines += _rank_lines(ranks, paper)
    return lines


def _whose(rank: RankMemory) -> str:
    batches = f"{rank.in_flight:g} micro-batch{'' if rank.in_flight == 1 else 'es'}"
    return f"pipeline rank {rank.rank}: {_blocks(rank)}; at most {batches} in flight"


def _blocks(rank: RankMemory) -> str:
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in rank.blocks.items())


def _picture(case: Case, rank: RankMemory, paper: Paper) -> list[Line]:
    shown, peak = _thinned(rank), rank.peak
    width = min(_MOST_NAME, max(len(_name(phase)) for phase in shown))
    cells = min(_LONGEST, paper.width - width - _NUMBER - len(_PEAK) - 5)
    capacity = case.estimate.memory.capacity
    whole = max(peak.total, capacity)
    rows: list[Line] = []
    for phase in shown:
        bar = _bar(phase, cells / whole, paper)
        at_peak = phase is peak
        tone = VERDICT_TONES[case.estimate.verdict] if at_peak else Tone.PLAIN
        label = f"  {_name(phase)[:width]:<{width}}"
        rows.append(
            (
                Span(label, Tone.STRONG if at_peak else Tone.FAINT),
                Span(f" {gib(phase.total):>{_NUMBER}}  "),
                Span(bar, tone),
                Span(_PEAK if at_peak else "", Tone.STRONG),
            )
        )
    left, middle, right = "\u251c\u2500\u2524" if paper.blocks else "|-|"
    ruler = left + middle * max(0, round(cells * capacity / whole) - 2) + right
    rows.append((Span(f"  {'usable':<{width}} {gib(capacity):>{_NUMBER}}  {ruler}", Tone.FAINT),))
    left_out = len(rank.phases) - len(shown)
    legend = "   ".join(f"{_glyph(strokes, paper)} {name}" for name, _, strokes in _STROKES)
    more = f"; {left_out} more phases in --json" if left_out else ""
    return rows + wrapped(f"GiB: {legend}{more}", paper, first="  ", tone=Tone.FAINT)


def _name(phase: Phase) -> str:
    return " ".join(word for word in (phase.stage.value, phase.block, phase.repeat) if word)


def _thinned(rank: RankMemory) -> list[Phase]:
    """Return at most so many phases as a screen shows: first and last, the peak, and of the others some."""
    phases = rank.phases
    if len(phases) <= _MOST_ROWS:
        return list(phases)
    kept = {round(place * (len(phases) - 1) / (_MOST_ROWS - 2)) for place in range(_MOST_ROWS - 1)}
    kept |= {phases.index(rank.peak)}
    return [phase for place, phase in enumerate(phases) if place in kept]


def _bar(phase: Phase, scale: float, paper: Paper) -> str:
    """Return a phase's bar; edges are rounded, so that its length is the total's."""
    bar, until = "", 0
    for _, parts, strokes in _STROKES:
        until += sum(phase.parts[part] for part in parts)
        bar += _glyph(strokes, paper) * (round(scale * until) - len(bar))
    return bar


def _glyph(strokes: str, paper: Paper) -> str:
    return strokes[0] if paper.blocks else strokes[1]


def _rank_lines(ranks: Sequence[RankMemory], paper: Paper) -> list[Line]:
    columns = (
        Column(title="rank", fill=Fill.NUMBER),
        Column(title="in flight", fill=Fill.NUMBER),
        Column(title="GiB", fill=Fill.NUMBER),
        Column(title="peak", most=26),
        Column(title="blocks", fill=Fill.REST, most=60),
    )
    rows = [
        Row(
            cells=(
                str(rank.rank),
                f"{rank.in_flight:g}",
                gib(rank.peak.total),
                _name(rank.peak),
                _blocks(rank),
            )
        )
        for rank in ranks
    ]
    lines = heading("Peaks of the pipeline's ranks; of equal ones the first, which holds most", paper)
    return lines + table_lines(columns, rows, paper)
