"""How a model is divided over a plan's axes: chosen and proven before anything of it is divided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.runtime.context_parallel.apply import choose_division
from parastrat.runtime.expert_parallel.apply import choose_experts
from parastrat.runtime.tensor_parallel.apply import choose_layout, own_draws
from parastrat.runtime.tensor_parallel.copies import Source

if TYPE_CHECKING:
    from parastrat.runtime.first_values.replay import Record
    from parastrat.runtime.wrapping import Wrapping


def choose_divisions(
    module: nn.Module, wrapping: Wrapping, *, sample_inputs: Any = None, record: Record | None = None
) -> None:
    """Note how layers, positions and experts will be divided, as the plan has axes; all ranks call it.

    Args:
        module: whole, of which no stage is cut yet.
        wrapping: of it.
        sample_inputs: one micro-batch; None: guessed from the model.
        record: how a callable built it; None for a module that was given.

    Raises:
        WrapError: if something cannot be divided, or a small copy cannot be made to prove it.
        MismatchError: if the ranks did not find the same.
    """
    source = Source(module=module, sample_inputs=sample_inputs, record=record, device=wrapping.device)
    mesh = wrapping.mesh
    # positions come behind layers, beside which they are divided
    for axis, choose in ((mesh.tp, choose_layout), (mesh.cp, choose_division), (mesh.ep, choose_experts)):
        if axis is not None:
            with own_draws(wrapping.device):
                choose(source, wrapping, axis)
