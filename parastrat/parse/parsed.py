"""What a file says, part by part; a part that it does not state is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parastrat.case import Unknown
from parastrat.estimate import Estimate
from parastrat.hardware import Hardware
from parastrat.launch import Launch
from parastrat.plan import Plan
from parastrat.workload import Workload

#: of plan files
SCHEMA = "parastrat.plan/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFingerprint:
    """Enough of a model to tell that a plan was made for another one."""

    #: MODEL as the user typed it; a path stands relative to the plan file
    ref: str
    #: parameters, ties counted once
    parameters: int
    #: repeated blocks, as the runtime finds them
    blocks: int
    #: the checkpoint has buffers, which may change from step to step; None: unknown
    changing_buffers: bool | None = None
    #: tokens choose which of its modules run; None: unknown
    routed: bool | None = None


class FingerprintedModel(Unknown):
    """Stands for the model of a plan file in a ``Case``; of it only the fingerprint can be read."""

    __slots__ = ("changing_buffers", "layers", "parameters", "ref", "routed")

    def __init__(self, fingerprint: ModelFingerprint) -> None:
        super().__init__("model")
        self.ref = fingerprint.ref
        self.parameters = fingerprint.parameters
        self.layers = fingerprint.blocks
        self.changing_buffers = fingerprint.changing_buffers
        self.routed = fingerprint.routed


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One file, read and checked for form; whether the plan is any good is for the rules to say."""

    plan: Plan | None = None
    workload: Workload | None = None
    model: ModelFingerprint | None = None
    hardware: Hardware | None = None
    #: name of the stack that the estimate holds for
    stack: str | None = None
    launch: Launch | None = None
    estimate: Estimate | None = None
    #: dotted key (``plan.tp``, ``launch.env.NCCL_DEBUG``) to line and column, both from 1
    positions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
