"""Which tensors live when, and who keeps them for backward: one forward and backward, watched.

The forward is a chain of segments: each visit to a repeated block is one, and so is what runs between.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parastrat.model import OperatorKind, Split
from parastrat.runtime.recompute import KEPT, MATMULS
from parastrat.runtime.tensors.leaves import tensors_in, tree_tensors
from parastrat.runtime.tensors.storages import storage_of
from parastrat.runtime.tracing.answers import Answers
from parastrat.runtime.tracing.dividing import Dividing
from parastrat.runtime.tracing.division import Division
from parastrat.runtime.tracing.fake_mode import asked, is_question
from parastrat.runtime.tracing.known import NEEDS_VALUES, KnownValues
from parastrat.runtime.tracing.operators import FLASH, call_of, with_workspace
from parastrat.runtime.tracing.recorded import Allocation, Behind, Segment

_ADD, _CAST = torch.ops.aten.add.Tensor, torch.ops.aten._to_copy.default  # noqa: SLF001  (no public name)


class Tracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Follows every storage from the operator that makes it to its end.

    Args:
        parameters: the model's, by name; tied ones under one name.
        constants: other tensors that outlive the step.
        answers: to what the forward asks of values; None: it must not ask.
        casts: autocast makes short copies of parameters, which stand for these.
        division: what tensor parallelism would divide.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        constants: list[torch.Tensor],
        answers: Answers | None = None,
        *,
        casts: bool = False,
        division: Division | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.dividing = Dividing(division or Division())
        self._answers, self._casts = answers, casts
        #: values of what the forward is given
        self.known = KnownValues(answered=answers is not None)
        #: names of the parameters of which that made some, with the segment that did so first
        self.cast: dict[str, int] = {}
        self.segments = [Segment(block="")]
        #: +1 and -1: an allocation begins and ends, in the segment that runs or whose backward runs
        self.forward_events: list[tuple[int, int, Allocation]] = []
        self.backward_events: list[tuple[int, int, Allocation]] = []
        self._alive: dict[int, Allocation] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}
        #: sums that backward makes, as autograd does of a tensor's gradients, with the first summand
        self._sums: dict[Allocation, Allocation] = {}
        self._names: dict[int, str] = {}
        #: bytes of the parameters that get gradients
        self.trainable = {
            name: parameter.untyped_storage().nbytes()
            for name, parameter in parameters.items()
            if parameter.requires_grad
        }
        self.behind = Behind()
        #: index of the segment that runs, or whose backward runs
        self.current, self._backward = 0, False
        #: of each repeated block the segment of its last visit
        self._last: dict[str, int] = {}
        for name, parameter in parameters.items():
            self._names[storage_of(parameter)] = name
            self.allocation(parameter).constant = True
        for tensor in constants:
            self.allocation(tensor).constant = True

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_question(func):
            return asked(func, args, kwargs or {})
        if self._answers is not None and self._answers.know(args, kwargs or {}):
            return self._answers.computed(func, args, kwargs or {})
        result = with_workspace(func, self._result(func, args, kwargs or {}))
        self.known.follow(func, args, kwargs or {}, result)
        outputs = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        way = Split.REPLICATED
        if self.dividing.divides:
            way = self.dividing.way(func, *self._read((args, kwargs)), backward=self._backward)
        for tensor in outputs:
            self.allocation(tensor, attention=func in FLASH, way=way)
        if not self._backward:
            if self._casts and func is _CAST and self._is_parameter(args[0]):
                name = self._names[storage_of(result)] = self._names[storage_of(args[0])]
                self.cast.setdefault(name, self.current)
                short = self.allocation(result)
                short.constant = short.cast = True
            self._note(func, args, kwargs, result)
        else:
            self._note_backward(func, args, result)
        return result

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return func(*args, **kwargs)
        except NEEDS_VALUES as error:
            known = self.known.answer(func, args, kwargs)
            if known is not None:
                return known[0]
            if self._answers is None:
                raise
            return self.known.placed(func, args, self._answers.to(func, args, kwargs, error))

    def allocation(
        self, tensor: torch.Tensor, *, attention: bool = False, way: Split = Split.REPLICATED
    ) -> Allocation:
        """Return the allocation of a tensor's storage; it begins now if it was unknown."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001  (the address; no public accessor)
        known = self._alive.get(key)
        if known is not None:
            return known
        if way is Split.REPLICATED and self.dividing.streams(tensor.numel(), self.segments[self.current]):
            way = Split.SEQUENCE
        made = Allocation(
            bytes=storage.nbytes(),
            created=self.current,
            attention=attention,
            way=way,
            elements=tensor.numel(),
        )
        self._alive[key] = made
        self._watches[key] = weakref.ref(storage, lambda _: self._freed(key))
        self._events.append((self.current, 1, made))
        return made

    def enter(self, block: str, inputs: Any) -> None:
        """A repeated block begins; in backward, one that the module itself checkpoints, once more."""
        if self._backward:
            self.current = self._last[block]
            self.behind.reached_segments.add(self.current)
            return
        segment = Segment(block=block)
        leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        segment.inputs = list(dict.fromkeys(self.allocation(leaf) for leaf in leaves))
        self.dividing.look_at(leaves)
        self._begin(segment)
        self._last[block] = self.current
        for leaf in leaves:
            self._use(leaf)

    def leave(self) -> None:
        """A repeated block ends."""
        if not self._backward:
            self._begin(Segment(block=""))

    def saved(self, tensor: torch.Tensor) -> tuple[int, torch.Tensor]:
        """Autograd keeps a tensor for backward; return what ``wanted`` is given."""
        self.allocation(tensor).savers[self.current] += 1
        return self.current, tensor.detach()

    def wanted(self, packed: tuple[int, torch.Tensor]) -> torch.Tensor:
        """Backward reads a tensor that was kept: it has reached that segment."""
        self.current = packed[0]
        self.behind.reached_segments.add(self.current)
        return packed[1]

    def begin_backward(self, output: Any, *, own_loss: bool) -> None:
        """The forward is over; a variable holds what it returned, maybe with the model's own loss."""
        self.behind.own_loss = own_loss
        for allocation in self._alive.values():
            allocation.kept = not allocation.constant
        for leaf in tensors_in(output):
            self.behind.returns(self.allocation(leaf))
        self._backward = True

    def end(self, gradients: Mapping[str, torch.Tensor], inputs: Sequence[torch.Tensor] = ()) -> None:
        """Backward is over.

        Of a parameter with several uses the first one's gradient stays until the next is added to it.

        Args:
            gradients: those that are there, by the names of the parameters.
            inputs: what the forward was given, which others hold.
        """
        self.behind.reached = set(gradients)
        for gradient in gradients.values():
            made: Allocation | None = self.allocation(gradient)
            while made is not None:
                made.gradient = True
                made.added = made in self._sums
                made = self._sums.get(made)
        self._sums.clear()
        if self._left(inputs):
            gc.collect()  # of what is left some may be in circles that nothing holds
        self.behind.left = self._left(inputs)
        self._watches.clear()
        self.dividing.settle(self.segments, [*self.forward_events, *self.backward_events])

    def _left(self, inputs: Sequence[torch.Tensor]) -> list[Allocation]:
        """Return what outlives the step, though no step before it made it."""
        held = {storage_of(tensor) for tensor in inputs}
        return [
            made for key, made in self._alive.items() if not (made.constant or made.gradient or key in held)
        ]

    @property
    def path(self) -> list[tuple[str, list[OperatorKind]]]:
        """The blocks that the forward visited, each with the kinds of its operators."""
        return [(segment.block, [call.kind for call in segment.calls]) for segment in self.segments]

    @property
    def in_backward(self) -> bool:
        """Whether the forward is over: what runs then is backward, or a forward that it runs again."""
        return self._backward

    @property
    def kept(self) -> list[Allocation]:
        """What was alive at the end of the forward, in the order of allocation."""
        return [made for _, sign, made in self.forward_events if sign > 0 and made.kept]

    @property
    def allocations(self) -> list[Allocation]:
        """All that the forward allocated."""
        return [made for _, sign, made in self.forward_events if sign > 0]

    @property
    def _events(self) -> list[tuple[int, int, Allocation]]:
        return self.backward_events if self._backward else self.forward_events

    def _begin(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.current = len(self.segments) - 1

    def _freed(self, key: int) -> None:
        ended = self._alive.pop(key, None)
        self._watches.pop(key, None)
        self._names.pop(key, None)
        if ended is not None:
            self._events.append((self.current, -1, ended))

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> None:
        segment, trained = self.segments[self.current], False
        for leaf in tree_tensors((args, kwargs)):
            self._use(leaf)
            trained |= leaf.requires_grad and self._is_parameter(leaf)
        call = call_of(func, args, result, self._is_parameter)
        if call is not None and self.dividing.divides:
            made = list(map(self.allocation, tree_tensors(result)))
            call = self.dividing.divided(call, segment, *self._read((args, kwargs)), made)
        if call is not None:
            segment.calls.append(call)
            if trained:
                given = self.allocation(next(iter(tree_tensors(result))))
                segment.awaited[given.way] += 0 if given.cast else given.bytes
                self.behind.trained = len(self.forward_events)
        if func in MATMULS:
            segment.matmuls += 1
        if func in KEPT or (func in MATMULS and segment.matmuls % 2 == 1):
            for kept in map(self.allocation, tree_tensors(result)):
                segment.selective[kept.way] += kept.bytes

    def _note_backward(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        if func is _ADD and isinstance(args[0], torch.Tensor):
            self._sums[self.allocation(result)] = self.allocation(args[0])
        # autograd's own operators run without gradients of their own; what a checkpoint runs again has them
        again = call_of(func, args, result, self._is_parameter) if torch.is_grad_enabled() else None
        if again is not None:
            self.segments[self.current].again.append(again)

    def _use(self, tensor: torch.Tensor) -> None:
        allocation = self.allocation(tensor)
        allocation.last_used = self.current
        allocation.differentiable |= tensor.requires_grad
        name = self._names.get(storage_of(tensor)) if allocation.constant else None
        if name is not None:
            self.segments[self.current].parameters[name] = None

    def _read(self, arguments: Any) -> tuple[list[Allocation], list[str]]:
        """Return what an operator reads: tensors, and the names of parameters."""
        held, weights = [], []
        for leaf in tree_leaves(arguments):
            if isinstance(leaf, torch.Tensor):
                name, known = self._names.get(storage_of(leaf)), self._alive.get(storage_of(leaf))
                if name is not None:
                    weights.append(name)
                elif known is not None:
                    held.append(known)
        return held, weights

    def _is_parameter(self, tensor: torch.Tensor) -> bool:
        return storage_of(tensor) in self._names
