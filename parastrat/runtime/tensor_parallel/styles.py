"""Roles applied to modules: how their parameters are divided and what happens around their forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from parastrat.runtime.communication.flow import (
    Entrance,
    gather,
    leave,
    positions_dim,
    scatter_sum,
    take,
)
from parastrat.runtime.tensor_parallel.access import Use, use_as
from parastrat.runtime.tensor_parallel.between import Passage
from parastrat.runtime.tensor_parallel.by_vocabulary import by_vocabulary
from parastrat.runtime.tensor_parallel.dtensors import own_share, shares_known
from parastrat.runtime.tensor_parallel.layout import Inside, Part, Role
from parastrat.runtime.tensor_parallel.norms import normalise_together
from parastrat.runtime.tensor_parallel.own_values import differentiated_once, own_values
from parastrat.runtime.tensor_parallel.stretches import own_head, own_stretches
from parastrat.runtime.tensor_parallel.sums import Place, entered

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_COLUMNS = (Role.COLUMN, Role.COLUMN_GATHERED)
_ROWS = (Role.ROW, Role.ROW_OF_WHOLE)
_WHOLE = (Role.SUMMED, Role.LATENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Styling:
    """What all modules of one group share."""

    mesh: DeviceMesh
    entrance: Entrance
    inside: Inside = Inside.LOCAL
    #: the group reads and writes shares of the positions
    sequence: bool = False
    #: it is a head, whose output may stay divided up to the loss
    loss: bool = False
    #: what is looked at between the columns and rows; none where nothing is known of it, or DTensors know
    passage: Passage | None = None
    #: the same inside of norms on the way
    norms: Passage | None = None


def feature_dims(module: nn.Module) -> tuple[int, int] | None:
    """Return the weight's dimensions of output and input features; None if it is no linear layer."""
    if isinstance(module, nn.Linear):
        return 0, 1
    # Hugging Face's GPT-2 keeps the transposed matrix
    return (1, 0) if type(module).__name__ == "Conv1D" and hasattr(module, "nf") else None


def divisible_beside(module: nn.Module) -> frozenset[str]:
    """Return the parameters that could be divided though they are no layer's: all of their modules' own."""
    found: set[str] = set()
    for name, part in module.named_modules():
        own = dict(part.named_parameters(recurse=False))
        sizes = {tuple(parameter.shape) for parameter in own.values()}
        if name and feature_dims(part) is None and len(sizes) == 1 and len(sizes.pop()) == 1:
            found |= {f"{name}.{each}" for each in own}
    return frozenset(found)


def divided_dim(module: nn.Module, name: str, part: Part | None) -> int | None:
    """Return the dimension along which a parameter is divided; None: it stays whole."""
    if part is None or part.role in _WHOLE or part.copied:
        return None
    if part.role in {Role.EMBEDDING, Role.NORM, Role.BESIDE}:
        return 0
    dims = feature_dims(module)
    if dims is None:
        return None
    if part.role in _COLUMNS:
        return dims[0] if name == "weight" else 0
    return dims[1] if name == "weight" else None


def apply_part(module: nn.Module, part: Part | None, styling: Styling) -> list[Place]:
    """Divide one module's own parameters, which are DTensors from here on, and surround its forward.

    Returns:
        Whole weights that see a share of the data, whose gradients are added up.
    """
    mesh = styling.mesh
    uses, summed = {}, []
    for name, parameter in module.named_parameters(recurse=False):
        dim = divided_dim(module, name, part)
        uses[name] = _use(module, name, part, styling)
        if _is_summed(name, part, styling):
            summed.append(Place(module, name))
        if not isinstance(parameter, DTensor):  # another owner of a tied one may have been here
            module._parameters[name] = distributed(parameter, mesh, dim)  # noqa: SLF001
    if uses:
        use_as(module, uses)
    if part is not None:
        _surround(module, part, styling)
    return summed


def _is_summed(name: str, part: Part | None, styling: Styling) -> bool:
    """Return whether a whole parameter's gradients on the ranks are those of their shares of the data."""
    if part is None or styling.inside is Inside.DTENSORS:
        return False
    # behind the sum over ranks, each has its own positions
    is_bias_of_share = part.role in _ROWS and name == "bias" and styling.sequence
    return part.role in _WHOLE or part.copied > 0 or is_bias_of_share


def distributed(parameter: nn.Parameter, mesh: DeviceMesh, dim: int | None) -> nn.Parameter:
    """Return the parameter as a DTensor: this rank's share of a dimension, or the whole."""
    values, size = parameter.detach(), mesh.size()
    if dim is not None:
        values = values.chunk(size, dim)[mesh.get_local_rank()].contiguous()
        # a chunk along the first dimension would keep the whole alive
        values = values.clone() if not values.is_meta else values
    tensor = DTensor.from_local(
        values,
        mesh,
        [Replicate() if dim is None else Shard(dim)],
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride() if dim is None else torch.empty(parameter.shape, device="meta").stride(),
    )
    made = nn.Parameter(tensor, requires_grad=parameter.requires_grad)
    made.__dict__.update(vars(parameter))
    return made


def _use(module: nn.Module, name: str, part: Part | None, styling: Styling) -> Use:
    mesh = styling.mesh
    if part is not None and part.role in _WHOLE:
        if styling.inside is Inside.DTENSORS:
            return lambda parameter: differentiated_once(parameter.redistribute(placements=[Replicate()]))
        place = Place(module, name)
        return lambda _parameter: entered(place, mesh)
    if part is not None and part.copied:
        whole, heads = Place(module, name), part.copied
        return lambda _parameter: own_head(entered(whole, mesh), heads, mesh)
    if part is not None and part.role in _ROWS and name == "bias":
        # added once, behind the sum; Conv1D cannot do without
        return _absent if isinstance(module, nn.Linear) else _zero
    if part is not None and part.segments and part.role in _COLUMNS:
        dim = divided_dim(module, name, part)
        return lambda parameter: own_stretches(parameter, part.segments, dim or 0, mesh)
    return own_values


def _absent(_parameter: DTensor) -> None:
    return None


def _zero(parameter: DTensor) -> torch.Tensor:
    return torch.zeros_like(parameter.to_local())


def _surround(module: nn.Module, part: Part, styling: Styling) -> None:
    mesh = styling.mesh
    begins = part.role in (*_COLUMNS, Role.LATENT) and not part.inner
    if begins and not styling.sequence:  # else the stream is gathered at another place
        change_input(module, styling.entrance)
    if part.role in _COLUMNS:
        features: Any = getattr(module, "nf", None)
        if features is not None:  # Conv1D shapes its output by it
            module.nf = features // mesh.size()
        if part.role is Role.COLUMN_GATHERED:
            change_output(module, lambda y: by_vocabulary(y, mesh) if styling.loss else gather(y, mesh))
        elif styling.inside is Inside.DTENSORS:
            change_output(module, lambda y: shares_known(y, mesh, max(len(part.segments), 1)))
        elif styling.passage is not None:
            change_output(module, styling.passage.begin())
    elif part.role in _ROWS:
        _surround_row(module, part, styling)
    elif part.role is Role.NORM:
        _surround_norm(module, styling)
    elif part.role is Role.EMBEDDING:
        _look_up_own_rows(module, styling)


def _surround_row(module: nn.Module, part: Part, styling: Styling) -> None:
    mesh = styling.mesh
    if part.role is Role.ROW_OF_WHOLE:
        change_input(module, lambda x: take(x, mesh))
    elif styling.inside is Inside.DTENSORS:
        change_input(module, own_share)
    if part.role is Role.ROW:
        change_input(module, styling.entrance.forget)
        if styling.passage is not None:
            change_input(module, styling.passage.end)
    if styling.sequence:
        change_output(module, lambda y: _with_bias(scatter_sum(y, mesh, positions_dim(y)), module, mesh))
    else:
        change_output(module, lambda y: _with_bias(leave(y, mesh), module))


def _surround_norm(module: nn.Module, styling: Styling) -> None:
    mesh = styling.mesh
    normalise_together(module, mesh)
    if styling.inside is Inside.DTENSORS:
        change_input(module, own_share)
        change_output(module, lambda y: shares_known(y, mesh, 1))
    if styling.norms is not None:
        change_input(module, styling.norms.begin())
        change_output(module, styling.norms.end)
    if styling.passage is not None:
        change_input(module, styling.passage.end)
        change_output(module, styling.passage.begin())


def _with_bias(output: torch.Tensor, module: nn.Module, summed: DeviceMesh | None = None) -> torch.Tensor:
    bias = module._parameters.get("bias")  # noqa: SLF001  (the attribute is empty meanwhile)
    if bias is None:
        return output
    if summed is not None:
        return output + entered(Place(module, "bias"), summed)
    return output + (own_values(bias) if isinstance(bias, DTensor) else bias)


def embedding_rows(module: nn.Module) -> int:
    """Return how many rows an embedding's weight has on all ranks together.

    A weight that was tied may have others than the module was made with; in a pipeline's other stages there
    is none.
    """
    weight = module._parameters.get("weight")  # noqa: SLF001  (the attribute is what a forward reads)
    rows: Any = module.num_embeddings if weight is None else weight.shape[0]
    return int(rows)


def _look_up_own_rows(module: nn.Module, styling: Styling) -> None:
    """Let an embedding answer zero for what other ranks hold."""
    mesh = styling.mesh
    rows = embedding_rows(module) // mesh.size()
    first = rows * mesh.get_local_rank()
    padding: Any = getattr(module, "padding_idx", None)
    if padding is not None:
        own_padding: Any = padding - first if first <= padding < first + rows else None
        module.padding_idx = own_padding
    foreign: list[torch.Tensor] = []

    def own(ids: torch.Tensor) -> torch.Tensor:
        foreign[:] = [(ids < first) | (ids >= first + rows)]
        return (ids - first).masked_fill(foreign[0], 0)

    def together(found: torch.Tensor) -> torch.Tensor:
        found = found.masked_fill(foreign.pop().unsqueeze(-1), 0.0)
        return scatter_sum(found, mesh, 1) if styling.sequence else leave(found, mesh)

    change_input(module, own)
    change_output(module, together)


def change_input(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the first input.

    Inside of the forward, not in a hook: a pipeline's stages skip forwards of others, but not their hooks.
    """
    forward = module.forward

    @wraps(forward)
    def changed(*args: Any, **kwargs: Any) -> Any:
        if args:
            return forward(change(args[0]), *args[1:], **kwargs)
        name = next(iter(kwargs))
        return forward(**{**kwargs, name: change(kwargs[name])})

    module.forward = changed


def change_output(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the output, or the first of several; inside of the forward, as ``change_input``."""
    forward = module.forward

    @wraps(forward)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return first_changed(forward(*args, **kwargs), change)

    module.forward = changed


def first_changed(output: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return an output with a change of it, or of the first of several."""
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)
