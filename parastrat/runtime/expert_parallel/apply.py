"""A module whose experts are divided over the expert-parallel ranks, as the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from parastrat.runtime.communication.agreement import alike
from parastrat.runtime.expert_parallel.choice import chosen_experts, divide
from parastrat.runtime.first_values.first_rank import to_device_from_first_rank
from parastrat.runtime.tensor_parallel.copies import Source

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.wrapping import Wrapping


def choose_experts(source: Source, wrapping: Wrapping, _mesh: DeviceMesh) -> None:
    """Note which experts will be divided over the plan's ep ranks; all ranks call it.

    With tp as well, of how its layers are divided all but them.

    Raises:
        WrapError: if they cannot be, or a small copy cannot be made to prove it.
        MismatchError: if the ranks did not find the same.
    """
    layout = wrapping.layout
    axis = "ep" if layout is None else "ep and tp"
    wrapping.experts, wrapping.layout = chosen_experts(replace(source, axis=axis), wrapping.mesh, layout)
    alike(str(wrapping.experts), "divide the model's experts differently")


def expert_parallel(module: nn.Module, wrapping: Wrapping) -> dict[str, nn.Module]:
    """Divide the module's experts in place, as was chosen; return the parts that hold them, by name."""
    experts = wrapping.experts
    if experts is None:
        return {}

    def from_first(part: nn.Module) -> None:
        own = [*part.parameters(recurse=False), *part.buffers(recurse=False)]
        to_device_from_first_rank(own, wrapping)

    parts = divide(module, experts, wrapping.mesh, from_first)
    wrapping.calls.append(
        f"# each rank of experts['ep'] holds its share of the experts in {', '.join(experts.kinds)}; "
        "tokens travel there and back"
    )
    return parts
