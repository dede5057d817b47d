"""Buffers that a forward changes between the calls of its parts, which stages do not all run."""

from __future__ import annotations

from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.pipeline.flow import Flow, Kind


def check_buffers(module: nn.Module, flow: Flow) -> None:
    """Refuse buffers that the forward changes between events, from what those computed.

    Stages have zeros in the place of what others compute, and leave the forward behind their last event.

    Raises:
        WrapError: naming one.
    """
    for name, buffer in module.named_buffers():
        if any(source.kind is Kind.OUTPUT for source in flow.held(buffer).sources):
            raise WrapError(
                f"the forward changes the buffer {name} between its blocks, from what they compute: no "
                "stage of a pipeline has all of it",
                hint="change it inside of a block (a module of its own that is called), or plan --pp 1",
            )
