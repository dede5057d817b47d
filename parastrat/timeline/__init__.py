"""One step as it passes: what each rank of a pipeline, or each stream of a device, does when."""

from parastrat.timeline.of_plan import Lane, Piece, Timeline, timeline_of

__all__ = ["Lane", "Piece", "Timeline", "timeline_of"]
