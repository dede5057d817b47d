"""Values that a forward without them knows: of whole numbers that it was given, and what it makes of these.

Lengths, grids and masks of a batch are few numbers, and tell the sizes of what is computed of it.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    unset_fake_temporarily,
)
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.runtime.tensors.leaves import tree_tensors
from parastrat.runtime.tensors.storages import storage_of
from parastrat.runtime.tracing.masks import chosen_by, takes_masks
from parastrat.runtime.tracing.operators import written
from parastrat.runtime.tracing.routes import evenly_chosen

#: more elements than lengths, grids and masks have are not looked at
_MOST = 2**18
#: and one for each pair of a token and an expert
_MOST_OF_ROUTES = 2**25
_ATEN = torch.ops.aten
#: what an operator raises that a tensor without values cannot answer
NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)


class KnownValues:
    """Values of fake tensors, by their storages.

    Args:
        answered: whether a forward that asks for more is answered.
    """

    def __init__(self, *, answered: bool = False) -> None:
        #: a forward that asks for more is answered: what chooses experts then chooses all equally often
        self._answered = answered
        self._most = _MOST_OF_ROUTES if answered else _MOST
        #: values in the form of the storage; none of one that has ended
        self._held: dict[int, torch.Tensor] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}
        #: whether an operator asked for values and got them
        self.asked = False

    def tell(self, fakes: Any, given: Any) -> None:
        """Note the values of a batch: of those tensors in it that are a few whole numbers."""
        for fake, values in zip(tree_leaves(fakes), tree_leaves(given), strict=True):
            if isinstance(values, torch.Tensor) and not (values.is_floating_point() or values.is_complex()):
                self._note(fake, values)

    def placed(self, func: Any, args: tuple[Any, ...], answer: Any) -> Any:
        """Return an answer; where it tells the places of all elements of a mask, they are known."""
        if func is _ATEN.nonzero.default and args[0].numel() <= self._most:
            with unset_fake_temporarily():
                values = torch.ones(args[0].shape).nonzero()
            self._note(answer, values)
        return answer

    def follow(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note what an operator has made of known values, or written."""
        if func._schema.is_mutable:  # noqa: SLF001  (no public accessor)
            self._follow_write(func, args, kwargs)
        else:
            self._follow_made(func, args, kwargs, result)
            chosen = evenly_chosen(func, args, result) if self._answered else None
            if chosen is not None:
                self._note(*chosen)

    def answer(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return what an operator gives that asks for values; None where they are not known."""
        if takes_masks(func):
            places = chosen_by(args[1], self._places)
            found = None if places is None else (func(args[0], places, *args[2:], **kwargs),)
        else:
            values = self._computed(func, args, kwargs)
            found = None if values is None else (tree_map(self._faked, values[0]),)
        self.asked |= found is not None
        return found

    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a tensor's values; None: they are not known."""
        if not isinstance(tensor, FakeTensor):
            return None if tensor.is_meta or tensor.numel() > self._most else tensor
        held = self._held.get(storage_of(tensor))
        is_view = held is not None and held.dtype is not tensor.dtype
        if held is None or is_view or held.nbytes != tensor.untyped_storage().nbytes():
            return None
        with unset_fake_temporarily():
            return torch.as_strided(held, tensor.size(), tensor.stride(), tensor.storage_offset())

    def _follow_made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Note what an operator makes of known values alone."""
        made = [leaf for leaf in tree_tensors(result) if storage_of(leaf) not in self._held]
        if not made or sum(leaf.numel() for leaf in made) > self._most or _is_free(func):
            return
        values = self._computed(func, args, kwargs)
        if values is not None:
            for fake, own in zip(tree_leaves(result), tree_leaves(values[0]), strict=True):
                if isinstance(fake, torch.Tensor) and storage_of(fake) not in self._held:
                    self._note(fake, own)

    def _follow_write(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Write known values too, or no longer know what was written to."""
        changed = written(func, args, kwargs)
        if all(storage_of(tensor) not in self._held for tensor in changed):
            return
        # a script's own tensor keeps its values
        own = all(isinstance(tensor, FakeTensor) for tensor in changed)
        if not own or _is_free(func) or self._computed(func, args, kwargs) is None:
            for tensor in changed:
                self._held.pop(storage_of(tensor), None)

    def _computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return what an operator gives of values; None where one of them is not known."""
        if any(self.of(tensor) is None for tensor in tree_tensors((args, kwargs))):
            return None
        known = tree_map(self._of_leaf, (args, kwargs))
        with unset_fake_temporarily(), torch.no_grad():
            try:
                return (func(*known[0], **known[1]),)
            except (IndexError, RuntimeError):  # of placeholders, such as lengths of 0
                return None

    def _of_leaf(self, leaf: Any) -> Any:
        return self.of(leaf) if isinstance(leaf, torch.Tensor) else leaf

    def _places(self, mask: torch.Tensor) -> list[torch.Tensor] | None:
        """Return the indices of what a mask chooses; None where that is not known."""
        values = self.of(mask)
        if values is None:
            return None
        with unset_fake_temporarily():
            places = values.nonzero(as_tuple=True)
        return [self._faked(place) for place in places]

    def _faked(self, values: Any) -> Any:
        """Return a tensor without the values, which are known of it."""
        if not isinstance(values, torch.Tensor):
            return values
        fake = torch.empty_strided(values.size(), values.stride(), dtype=values.dtype, device=values.device)
        self._note(fake, values)
        return fake

    def _note(self, fake: torch.Tensor, values: torch.Tensor) -> None:
        storage, key = fake.untyped_storage(), storage_of(fake)
        elements = storage.nbytes() // fake.itemsize
        # of an expanded tensor many elements are one
        if isinstance(values, FakeTensor) or values.is_meta or not fake.numel() <= elements <= self._most:
            return
        with unset_fake_temporarily(), torch.no_grad():
            held = torch.zeros(elements, dtype=fake.dtype)
            own = torch.as_strided(held, fake.size(), fake.stride(), fake.storage_offset())
            own.copy_(values.detach())
        self._held[key] = held
        self._watches[key] = weakref.ref(storage, lambda _: self._ended(key))

    def _ended(self, key: int) -> None:
        self._held.pop(key, None)
        self._watches.pop(key, None)


def _is_free(func: Any) -> bool:
    """Return whether an operator's result may hold any values."""
    return torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.overloadpacket.__name__
