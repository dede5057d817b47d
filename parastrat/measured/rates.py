"""Whether a measured run's device has rates that are known."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.measured.rows import MeasuredRow

#: what sources call devices that get less power than they are made for
_LIMITED = re.compile(r"power[- ]?(limited|limit|capped|cap)\b", re.IGNORECASE)
_WATTS = re.compile(r"\d\s?(k?w|watts?)\b", re.IGNORECASE)


def unknown_rate(row: MeasuredRow) -> str | None:
    """Return why no rate of a run's device is known; None where its profile's are.

    A device under a power limit multiplies as fast as that lets it. Where a source says that there is one,
    and not of how many watts, a step's time is as unknown; memory hangs on no rate.
    """
    said = " ".join(filter(None, (row.hardware, row.gpu, row.notes)))
    if not _LIMITED.search(said) or _WATTS.search(said):
        return None
    return "the device is power limited, and its source does not say to what"
