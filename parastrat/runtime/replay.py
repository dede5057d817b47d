"""What a constructor did on the meta device, recorded so that single tensors can be made for real.

Constants such as ``torch.ones(n)`` or rotary frequencies have no initialiser to call: their only recipe is
the constructor itself. So is what a constructor does after the initialisers, such as GPT-2's smaller
residual projections.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from parastrat.runtime.leaves import tree_tensors

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


#: operators that write in place and read nothing
_OVERWRITES = frozenset(
    {
        _ATEN.normal_.default,
        _ATEN.uniform_.default,
        _ATEN.zero_.default,
        _ATEN.fill_.Scalar,
        _ATEN.exponential_.default,
        _ATEN.bernoulli_.float,
        _ATEN.random_.default,
        getattr(_ATEN.random_, "from"),
        _ATEN.random_.to,
        _ATEN.cauchy_.default,
        _ATEN.log_normal_.default,
        _ATEN.geometric_.default,
    }
)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operator that ran."""

    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    #: its tensors as they were then: ``tensor.data = other`` puts another in the place of one later
    then: dict[int, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        held = tree_tensors([self.args, self.kwargs, self.result])
        object.__setattr__(self, "then", {id(tensor): tensor.detach() for tensor in held})

    def storage_of(self, tensor: torch.Tensor) -> int:
        """Return what all views of one of its tensors shared when it ran."""
        return storage_of(self.then[id(tensor)])

    @property
    def random(self) -> bool:
        return torch.Tag.nondeterministic_seeded in self.operator.tags

    @property
    def changed(self) -> list[torch.Tensor]:
        """Arguments that this operator writes in place."""
        values = zip(self.operator._schema.arguments, self.args, strict=False)  # noqa: SLF001  (no public accessor)
        written = [value for argument, value in values if _is_written(argument)]
        named = {argument.name for argument in self.operator._schema.arguments if _is_written(argument)}  # noqa: SLF001
        return tree_tensors([written, [value for name, value in self.kwargs.items() if name in named]])

    @property
    def read(self) -> set[int]:
        """Storages of the arguments."""
        return {self.storage_of(tensor) for tensor in tree_tensors([self.args, self.kwargs])}

    @property
    def written(self) -> set[int]:
        """Storages that this operator makes or changes; a view makes none."""
        made = {self.storage_of(tensor) for tensor in tree_tensors(self.result)} - self.read
        return made | {self.storage_of(tensor) for tensor in self.changed}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write in place, comparable between a meta tensor and a real one."""

    operator: Any
    #: size, stride and offset of the view that was written
    view: tuple[tuple[int, ...], tuple[int, ...], int]
    #: arguments after the tensor that is written; a tensor among them stands for its shape
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    #: other tensors are read, so that it cannot be repeated alone
    depends: bool

    def overwrites(self, tensor: torch.Tensor) -> bool:
        """Return whether nothing of what the tensor held is left, and nothing else is read."""
        whole = self.view[0] == tuple(tensor.size())
        return whole and self.operator in _OVERWRITES and not self.depends

    def repeat(self, tensor: torch.Tensor) -> None:
        """Write to a real tensor what the recorded operator would have written."""
        size, stride, offset = self.view
        self.operator(tensor.as_strided(size, stride, offset), *self.args, **dict(self.kwargs))


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Notes every operator that runs under it. Meta tensors are kept alive; they cost nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.record = Record()

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._literals = _Literals(self.record)
        self._literals.__enter__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        return self

    def __exit__(self, *raised: object) -> None:
        self._literals.__exit__(*raised)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        super().__exit__(*raised)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.record.steps.append(Step(operator=func, args=args, kwargs=kwargs or {}, result=result))
        return result


class _Literals(TorchFunctionMode):
    """Notes the values that meta tensors are made of."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record

    def __torch_function__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        from_values = func in _LITERALS and not any(leaf.is_meta for leaf in tree_tensors([args, given]))
        if from_values and result.is_meta:
            values = func(*args, **{**given, "device": "cpu"}).detach()
            self._record.steps.append(
                Step(operator=Literal(values), args=(result.device,), kwargs={}, result=result)
            )
        return result


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
                self._writes[storage_of(tensor)].append(_write(step, tensor))
        return func(*args, **(kwargs or {}))


@dataclass(slots=True, eq=False)
class Record:
    """The operators of a constructor, in order."""

    steps: list[Step] = field(default_factory=list)
    #: parameters and buffers of the finished module by name, as the constructor made them
    origins: dict[str, torch.Tensor] = field(default_factory=dict)

    def writes_to(self, name: str) -> list[Write]:
        """Return the writes in place to a parameter or buffer."""
        storage = storage_of(self.origins[name])
        return [
            _write(step, tensor)
            for step in self.steps
            for tensor in step.changed
            if step.storage_of(tensor) == storage
        ]

    def replayed(self, name: str, device: torch.device) -> torch.Tensor | None:
        """Return what a parameter or buffer would hold had the constructor run on ``device``.

        None if that takes random numbers, or nothing gave values (``torch.empty``).
        """
        target = self.origins[name]
        needed = self._needed(storage_of(target))
        if needed is None:
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
            if step.random:
                return None
            needed.append(step)
            made |= written - step.read
            if step.operator not in _EMPTY:
                filled |= written
            read = [tensor for tensor in tree_tensors([step.args, step.kwargs]) if tensor.is_meta]
            wanted |= set(map(step.storage_of, read))
        return needed[::-1] if wanted <= made & filled else None


def storage_of(tensor: torch.Tensor) -> int:
    """Return what all views of a tensor share while it lives; meta tensors have no address."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (no public identity)


def _write(step: Step, tensor: torch.Tensor) -> Write:
    others = [value for value in tree_tensors([step.args, step.kwargs]) if value is not tensor]

    def comparable(value: Any) -> Any:
        return tuple(value.shape) if isinstance(value, torch.Tensor) else value

    return Write(
        operator=step.operator,
        view=(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())),
        args=tuple(comparable(value) for value in step.args[1:]),
        kwargs=tuple(
            sorted((name, comparable(value)) for name, value in step.kwargs.items() if name != "generator")
        ),
        depends=bool(others),
    )


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)
