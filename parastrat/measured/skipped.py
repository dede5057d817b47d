"""Why a run is not predicted."""

from __future__ import annotations


class CannotPredictError(Exception):
    """A measured run has, or leaves out, what keeps it from being estimated; the message is the reason."""

    @property
    def reason(self) -> str:
        return str(self)
