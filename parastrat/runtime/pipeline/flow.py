"""Where values come from: every operator of a run on fake tensors, watched.

Each storage has sources (block outputs and parameters that it was computed from) and a number. Equal
numbers mean equal computations: same operators, same constants, same inputs, all the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from parastrat.runtime.tensors.leaves import tensors_in, tree_tensors
from parastrat.runtime.tensors.storages import storage_of
from parastrat.runtime.tracing.fake_mode import asked, is_question
from parastrat.runtime.tracing.known import NEEDS_VALUES, KnownValues
from parastrat.runtime.tracing.operators import call_of, written

#: tensors of at most so many elements are told apart by their values
_SMALL = 64


class Kind(StrEnum):
    """What a value may come from."""

    #: a tensor among what a part of the model returned
    OUTPUT = "output"
    PARAMETER = "parameter"
    #: a value inside of a part, which the part did not return
    INSIDE = "inside"


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """One origin of values: an output or inside of an event, or a parameter."""

    kind: Kind
    #: index of the event; -1 for parameters
    event: int = -1
    #: index among the event's output tensors
    index: int = 0
    #: of the parameter
    name: str = ""

    @classmethod
    def output(cls, event: int, index: int) -> Source:
        """Return one tensor of what an event returned."""
        return cls(Kind.OUTPUT, event, index)


@dataclass(slots=True, eq=False)
class Held:
    """What is known of one storage."""

    storage: torch.UntypedStorage
    number: int
    sources: frozenset[Source] = frozenset()
    #: outputs that are in it, where ``sources`` are what it was computed from
    returned: set[Source] = field(default_factory=set)
    #: operators that had run when it was first seen
    born: int = 0


@dataclass(slots=True, eq=False)
class Visit:
    """What one part of the model read and wrote while it ran."""

    born: int
    read: set[Source] = field(default_factory=set)
    touched: dict[int, Held] = field(default_factory=dict)
    flops: float = 0

    def note(self, inputs: list[Held], flops: float) -> None:
        """An operator has run; what was there before it began comes from outside."""
        self.flops += flops
        for held in inputs:
            if held.born <= self.born and id(held) not in self.touched:
                self.read |= held.sources


class Flow(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Follows sources and numbers of all storages.

    Args:
        numbers: the table of computations; runs that share it can be compared.
        is_parameter: for counting FLOPs.
    """

    def __init__(self, numbers: dict[Hashable, int], is_parameter: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._numbers = numbers
        self._is_parameter = is_parameter
        # storages are kept, so that no address is used twice; fake ones have no memory
        self._held: dict[int, Held] = {}
        self._count = 0
        self.visit: Visit | None = None
        #: outputs that were written to after they were returned
        self.changed: set[Source] = set()
        #: whether an operator was given what an earlier run left somewhere
        self.reads_earlier = False
        #: values of what the forward is given
        self.known = KnownValues()

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_question(func):
            return asked(func, args, kwargs or {})
        self._count += 1
        inputs = [self._read(leaf) for leaf in tree_tensors((args, kwargs))]
        key = (str(func), self._encoded(args), self._encoded(kwargs or {}))
        sources = frozenset[Source]().union(*(held.sources for held in inputs))
        result = self._result(func, args, kwargs or {})
        self.known.follow(func, args, kwargs or {}, result)
        if self.visit is not None:
            call = call_of(func, args, result, self._is_parameter)
            self.visit.note(inputs, 0 if call is None else call.flops)
        for place, tensor in enumerate(written(func, args, kwargs or {})):
            self._overwrite(self.held(tensor), self.intern((key, "written", place)), sources)
        for place, tensor in enumerate(tree_tensors(result)):
            if storage_of(tensor) not in self._held:
                made = self.held(tensor)
                is_copy = func is _CLONE and _is_whole(args[0]) and args[0].stride() == tensor.stride()
                made.number = inputs[0].number if is_copy else self.intern((key, place))
                made.sources = sources
                if self.visit is not None:
                    self.visit.touched[id(made)] = made
        return result

    def intern(self, key: Hashable) -> int:
        """Return the number of a computation."""
        return self._numbers.setdefault(key, len(self._numbers))

    def held(self, tensor: torch.Tensor) -> Held:
        """Return what is known of a tensor's storage."""
        address = storage_of(tensor)
        if address not in self._held:
            number = self._unknown(tensor, address)
            self._held[address] = Held(tensor.untyped_storage(), number, born=self._count)
        return self._held[address]

    def _read(self, tensor: torch.Tensor) -> Held:
        """Return what is known of what an operator is given."""
        self.reads_earlier |= isinstance(tensor, FakeTensor) and storage_of(tensor) not in self._held
        return self.held(tensor)

    def name(self, tensor: torch.Tensor, key: Hashable, sources: Iterable[Source] = ()) -> None:
        """Say what a tensor's storage is."""
        held = self.held(tensor)
        held.number, held.sources = self.intern(key), frozenset(sources)

    def sources_of(self, value: Any) -> frozenset[Source]:
        """Return the sources of all tensors in a module's output."""
        return frozenset[Source]().union(*(self.held(leaf).sources for leaf in tensors_in(value)))

    def numbers_of(self, value: Any) -> tuple[Hashable, ...]:
        """Return what was computed, for all tensors in a module's output."""
        return tuple(self._encoded(leaf) for leaf in tensors_in(value))

    def begin_visit(self) -> None:
        """A part of the model begins."""
        self.visit = Visit(born=self._count)

    def end_visit(self) -> Visit:
        """A part of the model has ended."""
        visit, self.visit = self.visit or Visit(born=self._count), None
        return visit

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on fake tensors; also where torch knows less of shapes than its kernel takes."""
        if func is _GROUPED and args[0].dtype is torch.float32:
            # the rule knows bf16 only; the kernel takes fp32 too
            return func(args[0].bfloat16(), args[1].bfloat16(), *args[2:], **kwargs).float()
        try:
            return func(*args, **kwargs)
        except NEEDS_VALUES:
            if func not in {_TO_NUMBER, _PLACES}:
                raise
            known = self.known.answer(func, args, kwargs)
            if known is not None:
                return known[0]
            return _concrete(args[0].dtype) if func is _TO_NUMBER else _every_place(args[0])

    def _overwrite(self, held: Held, number: int, sources: frozenset[Source]) -> None:
        self.changed |= held.returned
        held.number, held.sources = number, held.sources | sources
        if self.visit is not None:
            self.visit.touched[id(held)] = held

    def _unknown(self, tensor: torch.Tensor, address: int) -> int:
        """Number a tensor that no operator made: by its values if it has a few, else by its identity."""
        if isinstance(tensor, FakeTensor) or tensor.is_meta or tensor.numel() > _SMALL:
            return self.intern(("held", address))
        kind = (str(tensor.dtype), tuple(tensor.shape))
        try:
            return self.intern(("values", *kind, str(tensor.tolist())))
        except RuntimeError:
            # torch makes one of a Python number in an assignment, without memory that could be read
            return self.intern(("number", *kind))

    def _encoded(self, value: Any) -> Hashable:
        if isinstance(value, torch.Tensor):
            place = (value.storage_offset(), tuple(value.shape), value.stride(), value.dtype)
            return (self.held(value).number, *place)
        if isinstance(value, list | tuple):
            return tuple(map(self._encoded, value))
        if isinstance(value, dict):
            return tuple((name, self._encoded(item)) for name, item in value.items())
        return repr(value) if isinstance(value, int | float | bool | str | None) else str(value)


_ATEN = torch.ops.aten
_CLONE = _ATEN.clone.default
#: reading one value, which fake tensors have not
_TO_NUMBER = _ATEN._local_scalar_dense.default  # noqa: SLF001  (operators have no public names)
#: finding places, whose number hangs on values, such as those of the tokens that chose an expert
_PLACES = _ATEN.nonzero.default
_GROUPED = _ATEN._grouped_mm.default  # noqa: SLF001


def _is_whole(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is all of its storage."""
    return tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes()


def _concrete(dtype: torch.dtype) -> bool | int | float:
    """Answer for a value of a tensor: where none is known, the run watches the way that hangs on it."""
    if dtype is torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1


def _every_place(mask: torch.Tensor) -> torch.Tensor:
    """Answer with as many places as there can be; of what passes to the next stage, shapes are watched."""
    return mask.new_empty(mask.ndim, mask.numel(), dtype=torch.int64).t()
