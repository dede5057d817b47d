"""What a constructor did on the meta device, recorded so that single tensors can be made for real.

Constants such as ``torch.ones(n)`` or rotary frequencies have no initialiser to call: their only recipe is
the constructor itself. So is what a constructor does after the initialisers, such as GPT-2's smaller
residual projections.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.runtime.first_values.operations import Initialiser, Step, Write, write_of
from parastrat.runtime.tensors.leaves import tree_tensors
from parastrat.runtime.tensors.storages import storage_of

_ATEN = torch.ops.aten
#: operators that give memory without values
_EMPTY = frozenset(
    {
        _ATEN.empty.memory_format,
        _ATEN.empty_like.default,
        _ATEN.empty_strided.default,
        _ATEN.new_empty.default,
        _ATEN.new_empty_strided.default,
    }
)


_HOST = torch.device("cpu")
_IS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]  # torch's stub knows no descriptor
#: those of ``torch.nn.init`` that do nothing on the meta device since torch 2.13, by their code
_NOT_ON_META = {
    inspect.unwrap(function).__code__: function
    for function in (
        init.dirac_,
        init.orthogonal_,
        init.sparse_,
        # to which ``trunc_normal_`` hands on all that it is given
        getattr(init, "_no_grad_trunc_normal_", init.trunc_normal_),
    )
}

#: functions that take values, which a meta tensor does not keep
_LITERALS = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})


class Literal:
    """Stands for the operator that would have made a tensor of given values."""

    tags: tuple[torch.Tag, ...] = ()
    _schema = SimpleNamespace(arguments=())

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __call__(self, device: torch.device) -> torch.Tensor:
        return self.values.to(device, copy=True)


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes every operator that runs under it. Meta tensors are kept alive; they cost nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.record = Record()

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._unseen = _Unseen(self.record)
        self._unseen.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *raised: object) -> None:
        self._unseen.__exit__(*raised)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        super().__exit__(*raised)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        values = self._values(func, args, kwargs or {})
        result = (
            func(*args, **(kwargs or {})) if values is None else func(values, *args[1:], **(kwargs or {}))
        )
        self.record.steps.append(Step(operator=func, args=args, kwargs=kwargs or {}, result=result))
        return result

    def _values(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
        """Return the values of a meta tensor that a constructor asks for, as far as they are known."""
        if func is _ATEN._to_copy.default:  # noqa: SLF001  (torch's name of it)
            device = kwargs.get("device")
            asks = device is not None and torch.device(device).type == "cpu"
        else:
            asks = func is _ATEN._local_scalar_dense.default  # noqa: SLF001  (as above)
        return self.record.made(args[0], _HOST) if asks and args[0].is_meta else None


class _Unseen(TorchFunctionMode):
    """Notes what no operator tells: values that tensors are made of, and initialisers that run none."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func == _IS_META:  # each asking makes another wrapper
            self._note_initialiser(args[0])
        result = func(*args, **given)
        from_values = func in _LITERALS and not any(leaf.is_meta for leaf in tree_tensors([args, given]))
        if from_values and result.is_meta:
            values = func(*args, **{**given, "device": "cpu"}).detach()
            self._record.steps.append(
                Step(operator=Literal(values), args=(result.device,), kwargs={}, result=result)
            )
        return result

    def _note_initialiser(self, tensor: torch.Tensor) -> None:
        """Note what ``torch.nn.init`` would have drawn: some of it asks for the device, and returns."""
        caller = sys._getframe(2)  # noqa: SLF001  (no other way to a function that others imported by name)
        function = _NOT_ON_META.get(caller.f_code)
        if function is None or caller.f_locals.get("tensor") is not tensor:
            return
        names = [
            name for name in inspect.signature(function).parameters if name not in {"tensor", "generator"}
        ]
        values = [caller.f_locals[name] for name in names]
        step = Step(operator=Initialiser(function), args=(tensor, *values), kwargs={}, result=tensor)
        self._record.steps.append(step)


class WriteWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes the writes to some tensors, through whatever view."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._writes: dict[int, list[Write]] = {storage_of(tensor): [] for tensor in tensors}

    def writes_to(self, tensor: torch.Tensor) -> list[Write]:
        return self._writes.get(storage_of(tensor), [])

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        step = Step(operator=func, args=args, kwargs=kwargs or {}, result=None)
        for tensor in step.changed:
            if storage_of(tensor) in self._writes:
                self._writes[storage_of(tensor)].append(write_of(step, tensor))
        return func(*args, **(kwargs or {}))


@dataclass(eq=False)
class Record:
    """The operators of a constructor, in order."""

    steps: list[Step] = field(default_factory=list)
    #: parameters and buffers of the finished module by name, as the constructor made them
    origins: dict[str, torch.Tensor] = field(default_factory=dict)

    def writes_to(self, name: str) -> list[Write]:
        """Return the writes in place to a parameter or buffer."""
        return [
            write_of(step, tensor) for step, tensor in self._changes.get(storage_of(self.origins[name]), ())
        ]

    @cached_property
    def _changes(self) -> dict[int, list[tuple[Step, torch.Tensor]]]:
        """What steps write in place, by its storage; asked for where all steps have run."""
        found: dict[int, list[tuple[Step, torch.Tensor]]] = {}
        for step in self.steps:
            for tensor in step.changed:
                found.setdefault(step.storage_of(tensor), []).append((step, tensor))
        return found

    def is_given(self, name: str) -> bool:
        """Return whether values were written to a parameter or buffer that were there for real."""
        changes = self._changes.get(storage_of(self.origins[name]), ()) if name in self.origins else ()
        return any(
            not read.is_meta for step, _ in changes for read in tree_tensors([step.args, step.kwargs])
        )

    def replayed(self, name: str, device: torch.device, *, draws: bool = False) -> torch.Tensor | None:
        """Return what a parameter or buffer would hold had the constructor run on ``device``.

        None if nothing gave values (``torch.empty``), or it takes random numbers: unless they may be drawn
        anew, and no other holds the same.
        """
        return self.made(self.origins[name], device, draws=draws)

    def made(
        self, target: torch.Tensor, device: torch.device, *, draws: bool = False
    ) -> torch.Tensor | None:
        """Return what a tensor would hold now, as ``replayed`` does."""
        needed = self._needed(storage_of(target))
        if needed is None or any(
            step.random and not (draws and self._is_own(step, target)) for step in needed
        ):
            return None
        stored: dict[int, torch.Tensor] = {}

        def substitute(step: Step, value: Any) -> Any:
            if isinstance(value, torch.device):
                return device if value.type == "meta" else value
            if not isinstance(value, torch.Tensor) or not value.is_meta:
                return value
            return view_of(step.then[id(value)])

        def view_of(meta: torch.Tensor) -> torch.Tensor:
            base = stored[storage_of(meta)]
            return base.as_strided(meta.size(), meta.stride(), meta.storage_offset())

        for step in needed:
            args, kwargs = tree_map(partial(substitute, step), (step.args, step.kwargs))
            result = step.operator(*args, **kwargs)
            for meta, made in zip(tree_leaves(step.result), tree_leaves(result), strict=True):
                if isinstance(meta, torch.Tensor):
                    stored.setdefault(step.storage_of(meta), made)
        return view_of(target).clone()

    def _is_own(self, drawing: Step, target: torch.Tensor) -> bool:
        """Return whether one parameter or buffer alone is made of what a step draws.

        While the constructor runs, nothing else than the target may be.
        """
        reached = set(drawing.written)
        for step in self.steps[self.steps.index(drawing) :]:
            if not reached.isdisjoint(step.read):
                reached |= step.written
        if not self.origins:
            return reached == {storage_of(target)}
        return len(reached & set(map(storage_of, self.origins.values()))) == 1

    def _needed(self, target: int) -> list[Step] | None:
        """Return the steps that a storage's values depend on, in order."""
        wanted = {target}
        made: set[int] = set()
        filled: set[int] = set()
        needed: list[Step] = []
        for step in reversed(self.steps):
            written = step.written
            if wanted.isdisjoint(written):
                continue
            needed.append(step)
            made |= written - step.read
            if step.operator not in _EMPTY:
                filled |= written
            read = [tensor for tensor in tree_tensors([step.args, step.kwargs]) if tensor.is_meta]
            wanted |= set(map(step.storage_of, read))
        return needed[::-1] if wanted <= made & filled else None
