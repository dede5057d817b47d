"""Parameters that no rank used have no gradient, as on one device, so that an optimizer leaves them alone.

Where tokens choose experts, ranks use other ones, and FSDP2 must reduce alike on all of them: it sends
zeros for what a rank did not use. What nobody used then has a gradient of zeros, and weight decay and
momentum would move it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule

from parastrat.runtime.communication import messages
from parastrat.runtime.tensors.leaves import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.runtime.communication.mesh import RankMesh
    from parastrat.runtime.wrapped import Wrapped


Place: TypeAlias = "tuple[nn.Module, str]"


class Unused:
    """Knows which parameters took part in backward, on any rank that holds parts of the same.

    Args:
        roots: roots of FSDP2, or of the replication built on it, with their first weights and not gathered;
            those of a pipeline's stages are several.
        mesh: of all ranks.
    """

    def __init__(self, roots: list[nn.Module], mesh: RankMesh) -> None:
        self._mesh = mesh
        #: the owners and keys of parameters, in one order on all ranks
        self._places: list[Place] = []
        for root in roots:
            units = [part for part in root.modules() if isinstance(part, FSDPModule)]
            for unit in units:
                held = list(held_by(unit, set(units)))
                unit.register_forward_pre_hook(self._watcher(held, len(self._places)))
                self._places += held
        #: this rank's shards, which optimizers hold
        self._shards = [at(place) for place in self._places]
        #: what autograd sees of each, from the first time that it was gathered, by its number
        self._gathered: dict[int, nn.Parameter] = {}
        #: numbers of those with a part in gradients that are not reduced yet
        self._used: set[int] = set()
        #: a backward is running, of which ``_ended`` will hear
        self._running = False
        self._without: list[int] = []

    @contextmanager
    def dropped(self) -> Iterator[None]:
        """Leave what nobody used in the backwards inside without gradient; earlier ones stay."""
        self._begin()
        yield
        self._end()

    def follow(self, model: nn.Module, wrapping: Wrapped) -> None:
        """Do as much for each backward outside of ``forward_backward``."""

        def after(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if wrapping.stepping or not torch.is_grad_enabled():
                return
            for leaf in tensors_in(output):
                if leaf.requires_grad:
                    # FSDP2's own way to hear of a backward
                    leaf.register_hook(self._began)  # type: ignore[no-untyped-call]

        # before FSDP2 gathers anything
        model.register_forward_pre_hook(lambda *_: self._renew(), prepend=True)
        model.register_forward_hook(after)

    def _watcher(self, held: list[Place], first: int) -> Callable[..., None]:
        def watch(_module: nn.Module, _args: tuple[Any, ...]) -> None:
            """See to the parameters of a unit that FSDP2 has just gathered; it keeps them from then on."""
            for number, place in enumerate(held, first):
                gathered = at(place)
                if gathered.requires_grad and self._gathered.get(number) is not gathered:
                    self._gathered[number] = gathered
                    gathered.register_hook(self._noter(number))

        # FSDP2's own hooks are not compiled either
        apart: Callable[..., None] = torch.compiler.disable(watch)  # type: ignore[no-untyped-call]
        return apart

    def _noter(self, number: int) -> Callable[[torch.Tensor | None], None]:
        def note(gradient: torch.Tensor | None) -> None:
            if gradient is not None:
                self._used.add(number)

        return note

    def _began(self, _gradient: torch.Tensor) -> None:
        if not self._running:
            self._running = True
            self._begin()
            _at_the_end(lambda: _at_the_end(self._ended))  # behind FSDP2's, whichever was first

    def _ended(self) -> None:
        self._running = False
        self._end()

    def _renew(self) -> None:
        """Take what ``load_state_dict`` may have put in the place of shards; what is gathered is none."""
        for number, place in enumerate(self._places):
            now = at(place)
            if now is not self._gathered.get(number):
                self._shards[number] = now

    def _begin(self) -> None:
        self._renew()
        self._without = [number for number, shard in enumerate(self._shards) if shard.grad is None]

    def _end(self) -> None:
        in_doubt = {
            number for number in self._without if self._shards[number].grad is not None
        } - self._used
        own = [number not in in_doubt for number in range(len(self._shards))]
        used = messages.true_on_any(own, self._shards[0].device, self._mesh.stage_group)
        for shard, some in zip(self._shards, used, strict=True):
            if not some:
                shard.grad = None
        # what has none waits to be reduced by a later backward
        self._used = {number for number in self._used if self._shards[number].grad is None}


def held_by(unit: nn.Module, units: set[nn.Module]) -> Iterator[Place]:
    """Yield the owners and keys of what is gathered with a unit: the parameters of no unit inside of it."""
    for name, _ in unit.named_parameters(recurse=False, remove_duplicate=False):
        yield unit, name
    for child in unit.children():
        if child not in units:
            yield from held_by(child, units)


def at(place: Place) -> Any:
    """Return what the owner holds there now."""
    owner, name = place
    return owner._parameters[name]  # noqa: SLF001  (the attribute may show this rank's part)


def _at_the_end(action: Callable[[], None]) -> None:
    """Run an action when the backward that is running has ended."""
    Variable._execution_engine.queue_callback(action)  # noqa: SLF001  (as torch's own wrappers: there is no public way)
