"""A step drawn, and written for trace viewers."""

from __future__ import annotations

from parastrat.report.text import Paper, rendered
from parastrat.report.timeline import timeline_lines
from parastrat.report.trace import trace_events
from parastrat.timeline import Lane, Piece, Timeline
from parastrat.timeline.kinds import Kind

STREAMS = Timeline(
    lanes=(
        Lane(
            name="compute",
            pieces=(
                Piece(kind=Kind.FORWARD, name="layer", start=1.0, end=4.0),
                Piece(kind=Kind.BACKWARD, name="layer", start=4.0, end=10.0),
            ),
        ),
        Lane(name="gather", pieces=(Piece(kind=Kind.GATHER, name="layer", start=0.0, end=1.0),)),
        Lane(name="reduce", pieces=(Piece(kind=Kind.REDUCE, name="layer", start=9.95, end=10.0),)),
    ),
    seconds=20.0,
    micro_batches=1,
    shown=10.0,
    exposed=2.0,
    collectives=8.0,
)


def test_streams_drawn() -> None:
    # ten cells of a second each
    page = rendered(timeline_lines(STREAMS, 2, Paper(width=24)), Paper(width=24))
    assert "  compute   .FFFBBBBBB" in page
    assert "  gather    G........." in page
    # a twentieth of a cell is seen
    assert "  reduce    .........r" in page
    told = " ".join(page.split())
    assert "A step as it passes: 20.0 s, without the optimizer" in told
    assert "shown are 1 of 2 micro-batches" in told
    assert (
        "take 8.00 s; 75 % of that hides behind compute, and the step is 2.00 s longer, 10 % of it" in told
    )


def test_of_many_ranks_some_are_drawn() -> None:
    forward = (Piece(kind=Kind.FORWARD, name="stage", start=0.0, end=1.0),)
    lanes = tuple(Lane(name=f"rank {rank}", pieces=forward) for rank in range(64))
    pipeline = Timeline(lanes=lanes, seconds=2.0, micro_batches=4, shown=2.0, exposed=0.5)
    page = rendered(timeline_lines(pipeline, 4, Paper()), Paper())
    drawn = [line.split()[1] for line in page.splitlines() if line.startswith("  rank ") and "FF" in line]
    assert len(drawn) == 16
    assert (drawn[0], drawn[-1]) == ("0", "63")
    assert "waits 500 ms for others, 25 %" in page


def test_trace_events_in_microseconds() -> None:
    table = trace_events(STREAMS)
    names = {event["tid"]: event["args"]["name"] for event in table["traceEvents"] if event["ph"] == "M"}
    assert names == {0: "compute", 1: "gather", 2: "reduce"}
    complete = [event for event in table["traceEvents"] if event["ph"] == "X"]
    assert [(event["tid"], event["name"], event["ts"], event["dur"]) for event in complete[:3]] == [
        (0, "F layer", 1e6, 3e6),
        (0, "B layer", 4e6, 6e6),
        (1, "G layer", 0.0, 1e6),
    ]
