"""What is done in a step."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    """Something that a rank computes or a stream moves; the value is the letter that stands for it."""

    FORWARD = "F"
    #: of inputs and weights at once
    BACKWARD = "B"
    #: gradients of inputs alone, which the stage before waits for
    INPUTS = "I"
    #: gradients of weights, which nobody waits for
    WEIGHTS = "W"
    #: a unit's parameters
    GATHER = "G"
    #: a unit's gradients
    REDUCE = "R"
