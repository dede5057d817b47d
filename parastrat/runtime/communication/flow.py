"""How activations pass between whole and shared among the tensor-parallel ranks, with their gradients.

Each is a pair of collectives, one for the forward and its conjugate for the backward (arXiv 1909.08053,
section 3; with the sequence divided: arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_Change = Callable[[torch.Tensor], torch.Tensor]

#: torch 2.13 renamed them; earlier releases know the names behind alone
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """What a mesh says of its ranks, asked once: each exchange needs it, and a mesh works it out anew."""

    group: dist.ProcessGroup
    size: int
    rank: int


#: by the identity of a mesh: meshes of the same ranks are equal, also when their groups are gone
_known: dict[int, tuple[weakref.ref[DeviceMesh], Ranks]] = {}


def ranks_of(mesh: DeviceMesh) -> Ranks:
    """Return a mesh's group, its size and this rank's place in it."""
    if torch.compiler.is_compiling():
        # a compiler knows meshes, and not their identities
        return Ranks(group=mesh.get_group(), size=mesh.size(), rank=mesh.get_local_rank())
    held = _known.get(id(mesh))
    if held is not None and held[0]() is mesh:
        return held[1]
    return _kept(mesh, mesh.get_group())


def exchange_over(group: dist.ProcessGroup, mesh: DeviceMesh) -> None:
    """Exchange a mesh's tensors over another group of its ranks from now on."""
    _kept(mesh, group)


def _kept(mesh: DeviceMesh, group: dist.ProcessGroup) -> Ranks:
    place = id(mesh)
    ranks = Ranks(group=group, size=mesh.size(), rank=mesh.get_local_rank())
    _known[place] = weakref.ref(mesh, lambda _: _known.pop(place, None)), ranks
    return ranks


class _Exchange(torch.autograd.Function):
    """One change on the way, another one for the gradient on its way back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: _Change, back: _Change) -> torch.Tensor:
        ctx.there, ctx.back = there, back
        return there(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = gradients
        if torch.is_grad_enabled() and gradient.requires_grad:
            # of a gradient that is differentiated again the ways are the tensor's, the other way round
            return _Exchange.apply(gradient, ctx.back, ctx.there), None, None  # type: ignore[no-untyped-call]
        return ctx.back(gradient), None, None


def enter(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Pass on a whole tensor that each rank uses in part: its gradients are added up."""
    return exchanged(x, _same, lambda gradient: all_reduced(gradient, mesh))


def leave(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Add up the ranks' tensors."""
    return exchanged(x, lambda parts: all_reduced(parts, mesh), _same)


def gather(x: torch.Tensor, mesh: DeviceMesh, dim: int = -1) -> torch.Tensor:
    """Put the ranks' shares of a dimension together; the result is used alike on all ranks."""
    return exchanged(x, lambda own: _joined(own, mesh, dim), lambda gradient: _share(gradient, mesh, dim))


def take(x: torch.Tensor, mesh: DeviceMesh, dim: int = -1) -> torch.Tensor:
    """Keep this rank's share of a dimension of a tensor that is alike on all ranks."""
    return exchanged(
        x, lambda whole: _share(whole, mesh, dim), lambda gradient: _joined(gradient, mesh, dim)
    )


def gather_parts(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    """Put the ranks' shares together for ranks that each use the whole in part."""
    return exchanged(x, lambda own: _joined(own, mesh, dim), lambda parts: _scattered(parts, mesh, dim))


def scatter_sum(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    """Add up the ranks' tensors and keep this rank's share of a dimension."""
    return exchanged(x, lambda parts: _scattered(parts, mesh, dim), lambda own: _joined(own, mesh, dim))


def follows_exchanges(mesh: DeviceMesh, device: torch.device) -> bool:
    """Return whether what this torch compiles finds gradients behind an exchange; all ranks call it.

    torch 2.11 takes what a collective returns for a constant there, without a word.
    """
    x = torch.ones(mesh.size(), device=device, requires_grad=True)
    found = torch.compile(lambda x: leave(x * 2, mesh), backend="eager")(x).sum()
    found.backward()  # type: ignore[no-untyped-call]
    return x.grad is not None and bool((x.grad == 2).all())


def positions_dim(x: torch.Tensor) -> int:
    """Return the dimension of positions: behind that of samples, or the first where code joined both.

    Rows of tokens are put together in another order than in whole sequences then; each comes back to its
    place.
    """
    return 0 if x.ndim == 2 else 1


def exchanged(x: torch.Tensor, there: _Change, back: _Change) -> torch.Tensor:
    """Return a tensor changed on its way, whose gradient is changed on the way back."""
    changed: torch.Tensor = _Exchange.apply(x, there, back)  # type: ignore[no-untyped-call]
    return changed


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def all_reduced(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return the sum of the ranks' tensors, in one of its own."""
    if torch.compiler.is_compiling():
        summed: torch.Tensor = collectives.all_reduce(x.contiguous(), "sum", ranks_of(mesh).group)
        return summed
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=ranks_of(mesh).group)
    return total


def all_gather_flat(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return the ranks' contiguous tensors one behind the other along the first dimension."""
    ranks = ranks_of(mesh)
    if torch.compiler.is_compiling():
        gathered: torch.Tensor = collectives.all_gather_tensor(x, 0, ranks.group)
        return gathered
    together = x.new_empty((ranks.size * x.shape[0], *x.shape[1:]))
    _all_gather(together, x, group=ranks.group)
    return together


def reduce_scatter_flat(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return this rank's share along the first dimension of the sum of the ranks' contiguous tensors."""
    ranks = ranks_of(mesh)
    if torch.compiler.is_compiling():
        own: torch.Tensor = collectives.reduce_scatter_tensor(x, "sum", 0, ranks.group)
        return own
    total = x.new_empty((x.shape[0] // ranks.size, *x.shape[1:]))
    _reduce_scatter(total, x, group=ranks.group)
    return total


def _joined(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    together = all_gather_flat(x.contiguous(), mesh)
    return together if dim == 0 else torch.cat(together.chunk(ranks_of(mesh).size), dim)


def _share(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    ranks = ranks_of(mesh)
    share = x.chunk(ranks.size, dim)[ranks.rank]
    # a view of one sample's share would be contiguous, and keep the whole alive
    return share.clone(memory_format=torch.contiguous_format)


def _scattered(x: torch.Tensor, mesh: DeviceMesh, dim: int) -> torch.Tensor:
    together = x.contiguous() if dim == 0 else torch.cat(x.chunk(ranks_of(mesh).size, dim))
    return reduce_scatter_flat(together, mesh)


class Entrance:
    """Lets modules that read one tensor, such as q, k and v, share one exchange of it."""

    def __init__(self, change: _Change, *, shared: bool, in_evaluation: bool = False) -> None:
        self._change = change
        #: several may read; what follows them calls ``forget``
        self._shared = shared
        #: the tensor itself changes, not only its gradient
        self._always = in_evaluation
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the tensor as entered."""
        needed = torch.is_grad_enabled() and x.requires_grad
        if not needed:
            return self._change(x) if self._always else x
        if self._last is not None and self._last[0] is x:
            return self._last[1]
        entered = self._change(x)
        self._last = (x, entered) if self._shared else None
        return entered

    def forget(self, x: torch.Tensor) -> torch.Tensor:
        """Pass on what the row is given: the columns have read, and nothing may outlive autograd's needs.

        A weak reference would not do: what a column makes of the tensor is kept, not the tensor.
        """
        self._last = None
        return x
