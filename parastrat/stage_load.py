"""What the stages of a pipeline hold equally much of."""

from __future__ import annotations

from enum import StrEnum


class StageLoad(StrEnum):
    """What counts where a chain of blocks is cut into stages; where others do not divide, FLOPs do."""

    FLOPS = "flops"
    #: repeated blocks, whatever the ends weigh
    LAYERS = "layers"
    #: these, and each end as one of them
    BLOCKS = "blocks"
