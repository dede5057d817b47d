"""A failure that is known by what a library prints of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: where words are from
NCCL = "https://github.com/NVIDIA/nccl/blob/v2.30.7-1/"
GUIDE = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/"
TORCH = "https://github.com/pytorch/pytorch/blob/v2.13.0/"
AS_SEEN = "torch 2.13, as it prints it"


class Blames(StrEnum):
    """Where the cause lies."""

    MEMORY = "memory"
    SCRIPT = "script"
    SETUP = "setup"
    NETWORK = "network"
    DEVICE = "device"
    #: another rank ended or fell behind first
    PEER = "peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure that has a known cause."""

    blames: Blames
    #: what a library prints of it
    says: re.Pattern[str]
    means: str
    change: str
    #: where the words are from
    source: str


def known(blames: Blames, says: str, means: str, change: str, source: str) -> Failure:
    """Return a failure that is known by a pattern."""
    return Failure(
        blames=blames, says=re.compile(says, re.MULTILINE), means=means, change=change, source=source
    )
