"""One step as it passes, drawn: a row for each rank of a pipeline, or each stream of a device."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from parastrat.report.numbers import duration, percent
from parastrat.report.text import Line, Span, Tone, heading, wrapped
from parastrat.timeline.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from parastrat.report.text import Paper
    from parastrat.timeline import Lane, Timeline

_LONGEST = 96
_NAME = 10
#: more rows than this are thinned out
_MOST_ROWS = 16
#: of a cell what is drawn at least
_SEEN = 0.05
_WORDS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUTS: "gradients of inputs",
    Kind.WEIGHTS: "gradients of weights",
    Kind.GATHER: "parameters gathered",
    Kind.REDUCE: "gradients reduced",
}
_TONES = {
    Kind.FORWARD: Tone.GOOD,
    Kind.BACKWARD: Tone.PLAIN,
    Kind.INPUTS: Tone.PLAIN,
    Kind.WEIGHTS: Tone.FAINT,
    Kind.GATHER: Tone.CAUTION,
    Kind.REDUCE: Tone.CAUTION,
}


def timeline_lines(timeline: Timeline, micro_batches: int, paper: Paper) -> list[Line]:
    """Return a step as it passes, without the optimizer's, and what of it waits."""
    cells = min(_LONGEST, paper.width - _NAME - 4)
    without = "the optimizer" if timeline.collectives else "the optimizer and data-parallel collectives"
    lines = heading(f"A step as it passes: {duration(timeline.seconds)}, without {without}", paper)
    for lane in _thinned(timeline.lanes):
        label = Span(f"  {lane.name:<{_NAME}}", Tone.FAINT)
        lines.append((label, *_spans(_letters(lane, timeline.shown, cells))))
    kinds = {piece.kind for lane in timeline.lanes for piece in lane.pieces}
    legend = ", ".join(f"{kind.value} {word}" for kind, word in _WORDS.items() if kind in kinds)
    legend += "; small letters: less than half of the time"
    if timeline.micro_batches < micro_batches:
        shown = f"{timeline.micro_batches} of {micro_batches} micro-batches"
        legend += f"; shown are {shown}, those left out are like those in the middle"
    lines += wrapped(legend, paper, first="  ", tone=Tone.FAINT)
    return lines + wrapped(_waits(timeline), paper, first="  ")


def _waits(timeline: Timeline) -> str:
    share = percent(timeline.exposed / timeline.seconds)
    if not timeline.collectives:
        if len(timeline.lanes) == 1:
            return "nothing waits: what tp sends is part of forward and backward here"
        busiest = max(timeline.lanes, key=lambda lane: lane.busy)
        return (
            f"{busiest.name}, which has most to do, waits {duration(timeline.exposed)} for others, {share}"
        )
    hidden = max(0.0, 1 - timeline.exposed / timeline.collectives)
    taken, longer = duration(timeline.collectives), duration(timeline.exposed)
    return (
        f"collectives of parameters and gradients take {taken}; {percent(hidden)} of that hides behind "
        f"compute, and the step is {longer} longer, {share} of it"
    )


def _thinned(lanes: Sequence[Lane]) -> list[Lane]:
    if len(lanes) <= _MOST_ROWS:
        return list(lanes)
    kept = {round(place * (len(lanes) - 1) / (_MOST_ROWS - 1)) for place in range(_MOST_ROWS)}
    return [lane for place, lane in enumerate(lanes) if place in kept]


def _letters(lane: Lane, seconds: float, cells: int) -> list[tuple[str, Tone]]:
    """Return for each cell the letter of what takes most of it, a small one where that is below half."""
    each = seconds / cells
    shares: list[dict[Kind, float]] = [{} for _ in range(cells)]
    for piece in lane.pieces:
        first, last = int(piece.start / each), min(int(piece.end / each), cells - 1)
        for cell in range(first, last + 1):
            inside = min(piece.end, (cell + 1) * each) - max(piece.start, cell * each)
            shares[cell][piece.kind] = shares[cell].get(piece.kind, 0.0) + max(inside, 0.0)
    return [_letter(share, each) for share in shares]


def _letter(share: dict[Kind, float], each: float) -> tuple[str, Tone]:
    busy = sum(share.values())
    if busy < _SEEN * each:
        return ".", Tone.FAINT
    most = max(share, key=lambda kind: share[kind])
    return most.value if 2 * busy >= each else most.value.lower(), _TONES[most]


def _spans(cells: Iterable[tuple[str, Tone]]) -> list[Span]:
    """Return cells as text, neighbours of one tone together."""
    return [
        Span("".join(letter for letter, _ in run), tone)
        for tone, run in groupby(cells, key=lambda cell: cell[1])
    ]
