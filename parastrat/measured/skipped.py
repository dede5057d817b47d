"""Why a run is not predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.errors import ParastratError


class CannotPredictError(Exception):
    """A measured run has, or leaves out, what keeps it from being estimated; the message is the reason."""

    @property
    def reason(self) -> str:
        return str(self)

    @classmethod
    def because(cls, error: ParastratError) -> CannotPredictError:
        """Return the reason that an error is, with the name that was meant where it is about one."""
        meant = error.hint if error.hint.startswith("did you mean ") else ""
        return cls(f"{error.message}; {meant}" if meant else error.message)
