"""A step as it passes, in the format of trace viewers.

Source: Trace Event Format, complete events (``X``) in microseconds and names of threads (``M``);
https://ui.perfetto.dev and chrome://tracing read it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parastrat.timeline import Timeline

_MICRO = 1e6


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as trace events, a thread for each lane."""
    events: list[dict[str, Any]] = []
    for thread, lane in enumerate(timeline.lanes):
        events.append(
            {"ph": "M", "pid": 0, "tid": thread, "name": "thread_name", "args": {"name": lane.name}}
        )
        events += [
            {
                "ph": "X",
                "pid": 0,
                "tid": thread,
                "cat": piece.kind.name.lower(),
                "name": f"{piece.kind.value} {piece.name}",
                "ts": piece.start * _MICRO,
                "dur": (piece.end - piece.start) * _MICRO,
            }
            for piece in lane.pieces
        ]
    return {"displayTimeUnit": "ms", "traceEvents": events}
