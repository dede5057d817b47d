"""What a forward leaves gathered that no backward follows: freed before anything else sees it.

FSDP2 keeps the root, and what is not resharded, gathered behind a forward, as its backward begins there.
Where none comes, as behind an evaluation or a metric, a step would update shards, and the next forward read
what was gathered before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

import torch
from torch.distributed.fsdp import FSDPModule

from parastrat.errors import WrapError
from parastrat.runtime.backward import in_backward
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.tensors.shares import memory_of
from parastrat.runtime.training.unused import at, held_by
from parastrat.runtime.training.writes import apart, look_at, name_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from parastrat.runtime.training.unused import Place
    from parastrat.runtime.training.writes import Look

#: of roots that live
_roots: WeakSet[Left] = WeakSet()
#: by their identity, gathered weights that a script could get hold of
_copies: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()


class Left:
    """Knows what the forwards of one root leave gathered, and frees it.

    Behind a forward without gradients that is done at once: of an optimizer or an average that is made of
    gathered copies nothing would reach the shards. Behind one with gradients a backward may come, so it is
    done as soon as somebody looks for shards: a step of their optimizer, another forward, a list of
    parameters that are averaged, clipped or written.

    Args:
        root: sharded by FSDP2, or replicated by what is built on it, with all units in it.
        is_stage: it is called by a schedule alone, many times before the first backward.
    """

    def __init__(self, root: nn.Module, *, is_stage: bool) -> None:
        self._root, self._is_stage = root, is_stage
        self._units = [part for part in root.modules() if isinstance(part, FSDPModule)]
        inside = {part for part in self._units if part is not root}
        self._places: list[Place] = [
            place for unit in self._units for place in held_by(unit, {*inside, root})
        ]
        #: this rank's, which optimizers hold
        self._shards: list[torch.Tensor] = []
        self._running = False
        #: by a forward with gradients, whose backward did not begin
        self._is_left = False
        self._looks: list[tuple[Place, Look]] = []
        #: steps of optimizers that came between a forward and its backward
        self._steps = 0
        # before FSDP2 gathers; its own hooks are not compiled either
        root.register_forward_pre_hook(apart(self._began), prepend=True)
        root.register_forward_hook(apart(self._ended), always_call=True)
        if not is_stage:
            listed = root.named_parameters

            def named_parameters(*args: Any, **keywords: Any) -> Iterator[tuple[str, nn.Parameter]]:
                self._free_for_list()
                return listed(*args, **keywords)

            vars(root)["named_parameters"] = named_parameters
        _roots.add(self)

    def is_of(self, model: nn.Module) -> bool:
        """Return whether this is the model's."""
        return self._root is model

    def _began(self, _root: nn.Module, _args: tuple[Any, ...]) -> None:
        if in_backward():
            return  # recomputed
        if not self._is_stage:
            self._free()
        self._running = True
        if not self._is_left:
            self._shards = [at(place) for place in self._places]

    def _ended(self, _root: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        # nor has it begun where another hook raised before
        if in_backward() or not self._running:
            return
        self._running = False
        if not torch.is_grad_enabled():
            returned = {memory_of(leaf) for leaf in tensors_in(output)}
            if returned.isdisjoint(memory_of(at(place)) for place in self._places):
                self._free_units()
            return
        self._is_left = True
        if self._is_stage:
            return
        places = [
            place for place, shard in zip(self._places, self._shards, strict=True) if at(place) is not shard
        ]
        self._looks = [(place, look_at(place)) for place in places]
        _copies.update({id(at(place)): at(place) for place in places})
        began = self._hears_of_backward()
        for leaf in tensors_in(output):
            if leaf.requires_grad:
                leaf.register_hook(began)  # type: ignore[no-untyped-call]

    def _hears_of_backward(self) -> Any:
        steps = self._steps

        def began(_gradient: torch.Tensor) -> None:
            if steps != self._steps:
                raise WrapError(
                    "a backward runs behind optimizer.step() of a forward before it: FSDP2 would read some "
                    "weights as they were then, and others as they are now",
                    hint="run loss.backward() before optimizer.step(), or the forward behind it",
                )
            self._check()
            # FSDP2 frees everything at the end of it
            self._is_left = False

        return began

    def free_for_step(self, parameters: Iterable[torch.Tensor]) -> None:
        """Free what is gathered, and will be freed otherwise, where an optimizer steps its shards."""
        if not self._can_free():
            return
        shards = {id(shard) for shard in self._shards}
        if any(id(parameter) in shards for parameter in parameters):
            self._free()
            self._steps += 1

    def free_for_copy(self) -> None:
        """Free what is gathered, before the root is copied: a copy is made of shards.

        Raises:
            WrapError: a forward or a backward reads it meanwhile.
        """
        if self._running or in_backward():
            raise WrapError(
                "the model is copied inside of a forward or a backward, which reads what FSDP2 gathered",
                hint="copy it between steps, behind optimizer.step()",
            )
        self._free()

    def _free_for_list(self) -> None:
        """Free what is gathered, unless the list may be for a penalty in the loss of that forward."""
        waits = torch.is_grad_enabled() and all(shard.grad is None for shard in self._shards)
        if not waits:
            self._free()

    def _can_free(self) -> bool:
        return self._is_left and not self._running and not in_backward()

    def _free(self) -> None:
        if self._can_free():
            self._check()
            self._free_units()

    def _free_units(self) -> None:
        for unit in self._units:
            unit.reshard()
        self._is_left, self._looks = False, []

    def _check(self) -> None:
        """Refuse what was written to gathered weights since their forward."""
        looks, self._looks = self._looks, []
        for place, look in looks:
            now = look_at(place)
            if now.of is look.of and now.told != look.told:
                raise WrapError(
                    f"something was written to {name_of(place)} between a forward and its backward, where "
                    "FSDP2 has gathered it: that is lost",
                    hint="write to it behind optimizer.step(), or let what runs the forward alone do so "
                    "under torch.no_grad()",
                )


def free_for_step(parameters: Iterable[torch.Tensor]) -> None:
    """Free what models hold gathered of these parameters, which an optimizer is about to step.

    Raises:
        WrapError: it holds gathered copies, as one does that was made behind a forward with gradients.
    """
    held = list(parameters)
    for parameter in held:
        if _copies.get(id(parameter)) is parameter:
            raise WrapError(
                f"an optimizer holds a weight of shape {tuple(parameter.shape)} that FSDP2 had gathered "
                "for a forward: its steps would reach no shard",
                hint="make the optimizer before that forward, or run the forward under torch.no_grad()",
            )
    for root in _roots:
        root.free_for_step(held)


def free_for_copy(model: nn.Module) -> None:
    """Free what a model's forward left gathered, as it is about to be copied.

    Raises:
        WrapError: a forward or a backward of it runs.
    """
    for root in _roots:
        if root.is_of(model):
            root.free_for_copy()
