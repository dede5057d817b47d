"""Operators that ran, with what they read and wrote, and writes that can be repeated on another tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils._pytree import tree_map

from parastrat.runtime.tensors.leaves import tree_tensors
from parastrat.runtime.tensors.storages import storage_of

if TYPE_CHECKING:
    from collections.abc import Callable

_ATEN = torch.ops.aten
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


#: stands for the tensor that is written
HERE = object()


@dataclass(frozen=True, slots=True)
class Initialiser:
    """Stands for what a function of ``torch.nn.init`` runs, where that is nothing on the meta device."""

    function: Callable[..., Any]
    tags: ClassVar = (torch.Tag.nondeterministic_seeded,)
    overwrites: ClassVar = True
    _schema: ClassVar = SimpleNamespace(
        arguments=(SimpleNamespace(name="tensor", alias_info=SimpleNamespace(is_write=True)),)
    )

    def __call__(self, tensor: torch.Tensor, *args: Any) -> torch.Tensor:
        return self.function(tensor, *args)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    #: ``HERE`` for the tensor that is written; another among them stands for its shape
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    #: other tensors are read, so that it cannot be repeated alone
    depends: bool

    def overwrites(self, tensor: torch.Tensor) -> bool:
        """Return whether nothing of what the tensor held is left, and nothing else is read."""
        whole = self.view[0] == tuple(tensor.size())
        return (
            whole
            and not self.depends
            and getattr(self.operator, "overwrites", self.operator in _OVERWRITES)
        )

    def repeat(self, tensor: torch.Tensor) -> None:
        """Write to a real tensor what the recorded operator would have written."""
        size, stride, offset = self.view
        view = tensor.as_strided(size, stride, offset)
        args, kwargs = tree_map(
            lambda value: view if value is HERE else value, (self.args, dict(self.kwargs))
        )
        self.operator(*args, **kwargs)


def write_of(step: Step, tensor: torch.Tensor) -> Write:
    """Return a step's write to one of the tensors that it changes."""
    others = [value for value in tree_tensors([step.args, step.kwargs]) if value is not tensor]

    def comparable(value: Any) -> Any:
        if value is tensor:
            return HERE
        return tuple(value.shape) if isinstance(value, torch.Tensor) else value

    return Write(
        operator=step.operator,
        view=(tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())),
        args=tuple(comparable(value) for value in step.args),
        kwargs=tuple(
            sorted((name, comparable(value)) for name, value in step.kwargs.items() if name != "generator")
        ),
        depends=bool(others),
    )


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)
