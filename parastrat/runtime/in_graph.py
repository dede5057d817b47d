"""What a compiler follows, looked at as it does: autograd has its nodes then, and not as its graph runs.

A graph names what looks, all that look for the same alike, as equal blocks share one graph.
A compiler takes what is raised for a fault of its own: it is kept, and raised behind the call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.weak import WeakIdKeyDictionary

from parastrat.errors import WrapError
from parastrat.runtime.precision import replace_forward
from parastrat.runtime.tensors.shares import share_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Looking(Protocol):
    """Looks at what lies between some places and others."""

    def begun(self, output: torch.Tensor) -> None:
        """Note a tensor at a place where it begins."""

    def ended(self, given: torch.Tensor) -> None:
        """Look at what led to a tensor at a place where it ends; refuse what is wrong."""

    def forget(self) -> None:
        """Let go of what was noted."""


#: a graph takes numbers for such as change
_names: dict[Hashable, str] = {}
_looking: dict[str, Looking] = {}
#: those that noted something, and what they refused
_noting: set[str] = set()
_refused: list[WrapError] = []


def name_of_looking(key: Hashable, make: Callable[[], Looking]) -> str:
    """Return by what a graph names what looks for the same; ``make`` makes it, once."""
    if key not in _names:
        _names[key] = name = f"{len(_names)}"
        _looking[name] = make()
    return _names[key]


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def begun_in_graph(output: torch.Tensor, name: str) -> torch.Tensor:
    """Pass on a tensor at a place where something begins."""
    # a graph's inputs have no node of their own
    output = output.view_as(output)
    _noting.add(name)
    _looking[name].begun(output)
    return output


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def ended_in_graph(given: torch.Tensor, name: str) -> torch.Tensor:
    """Pass on a tensor at a place where something ends."""
    try:
        _looking[name].ended(given)
    except WrapError as error:
        _refused.append(error)
    return given.view_as(given)


def compile_forward(module: nn.Module, mesh: DeviceMesh | None) -> None:
    """Compile a module's forward, without the hooks around its calls.

    Calls of it raise ``WrapError`` where it takes a way that those who look refuse.

    Args:
        module: changed in place.
        mesh: of the tensor-parallel ranks over which its parameters are divided; None: they are not.
    """
    from torch._dynamo import config  # noqa: PLC0415  (takes a second)

    gradients = None if mesh is None else _Apart(module, mesh)

    def around(forward: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Any = torch.compile(forward)

        @wraps(forward)
        def in_graph(*args: Any, **kwargs: Any) -> Any:
            if gradients is not None:
                gradients.keep()
            # what code under a checkpoint notes, such as that a tensor was exchanged, no graph notes again
            with config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
                output = compiled(*args, **kwargs)
            if _noting:
                _end()
            return output

        return in_graph

    replace_forward(module, around)


class _Apart:
    """Keeps gradients of DTensors in memories of their own.

    A compiler computes once what several weights have for their gradient, and hands out one tensor. Of
    plain ones torch sees that, and copies; it does not look into a DTensor, and whatever changes gradients
    in place, such as ``clip_grad_norm_`` or the next micro-batch, would change one for all these weights.
    """

    def __init__(self, module: nn.Module, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        self._places = [(part, name) for part in module.modules() for name in part._parameters]  # noqa: SLF001
        #: those that are looked at, as long as they live: FSDP2 puts its own in the place of what was there
        self._known = WeakIdKeyDictionary()

    def keep(self) -> None:
        """Look at the gradients of what the module holds now."""
        for parameter in self._held():
            if parameter not in self._known and parameter.requires_grad:
                self._known[parameter] = None
                parameter.register_hook(partial(self._own, id(parameter)))  # type: ignore[no-untyped-call]

    def _held(self) -> Iterator[DTensor]:
        for part, name in self._places:
            parameter: Any = part._parameters.get(name)  # noqa: SLF001  (what a forward reads)
            # what else is sharded is a unit of its own, and no graph's
            if isinstance(parameter, DTensor) and parameter.device_mesh == self._mesh:
                yield parameter

    def _own(self, number: int, gradient: torch.Tensor) -> torch.Tensor | None:
        """Return a copy of a gradient that another weight has; None: it may stay."""
        memory = _memory_of(gradient)
        others = (other.grad for other in self._held() if id(other) != number)
        shared = any(_memory_of(held) == memory for held in others if held is not None)
        return gradient.clone() if shared else None


def _memory_of(gradient: torch.Tensor) -> int:
    return share_of(gradient).data_ptr()


def _end() -> None:
    for name in _noting:
        _looking[name].forget()
    _noting.clear()
    if _refused:
        first = _refused[0]
        _refused.clear()
        # whoever goes on all the same is looked at again
        torch.compiler.reset()
        raise first
