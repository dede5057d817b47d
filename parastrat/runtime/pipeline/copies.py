"""What a script changes of a model, told to the stages that have copies of its parts.

Where a rank has several stages, what is around their parts is copied, so that each has a root of its own,
and so are the parts of other stages (``build.split``). A script knows the model alone: what it sets there,
copies must have before they run, and what they set as they run, the model, which a loss may read. What
stages cannot follow is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from parastrat.errors import WrapError

if TYPE_CHECKING:
    from collections.abc import Collection

    from parastrat.runtime.pipeline.prune import Absent

#: what torch's modules keep in attributes, and what stands there for a stage's forward, or while it runs
_INTERNAL = frozenset(vars(nn.Module())) - {"training"} | {"forward", "parameters"}
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", *_BACKWARD)
_ABSENT = object()


@dataclass(slots=True, kw_only=True, eq=False)
class _Hooked:
    """Where stages do not run what hooks a part of the model."""

    name: str
    part: nn.Module
    #: which kinds of hooks, and those that were there before a script had the model
    known: dict[str, frozenset[int]]

    def check(self) -> None:
        if any(not own.issuperset(getattr(self.part, kind)) for kind, own in self.known.items()):
            raise WrapError(
                f"{self.name or 'the model'} has a hook that stages would not run, or with what they send",
                hint="do in forward what the hook does, hook what is inside of a stage, or plan --pp 1",
            )


@dataclass(slots=True, kw_only=True, eq=False)
class _Copied:
    """One part of the model, and its copies by stage."""

    name: str
    part: nn.Module
    copies: dict[int, nn.Module]
    #: it is around the stages' parts, and no part of another stage
    is_around: bool
    #: attributes that stand in for parameters, here or in the copies
    stand_ins: frozenset[str]
    #: attributes as the part last had them, and as each copy had
    known: dict[str, Any] = field(init=False)
    known_of: dict[int, dict[str, Any]] = field(init=False)
    #: what is not copied again
    held: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.known, self.held = self._attributes(self.part), self._held()
        # what is changed in place counts for all
        shared = {key: value for key, value in self.known.items() if not _names_modules(value)}
        for copied in self.copies.values():
            vars(copied).update(shared)
        self.known_of = {stage: self._attributes(copied) for stage, copied in self.copies.items()}

    def follow(self) -> None:
        """Let the copies be as the part is."""
        held = self._held()
        replaced = [key for key in {*held, *self.held} if held.get(key) is not self.held.get(key)]
        if self.is_around and replaced:
            raise WrapError(
                f"{'.'.join(filter(None, (self.name, min(replaced))))} was replaced after the model was "
                "cut into several stages a rank, which have copies of what is around it",
                hint="replace it before auto_parallelize, or plan virtual_stages = 1 (pp_schedule = 1F1B)",
            )
        now = self._attributes(self.part)
        changed, gone = _changes(now, self.known), self.known.keys() - now.keys()
        for stage, copied in self.copies.items():
            vars(copied).update(changed)
            self.known_of[stage].update(changed)
            for key in gone:
                vars(copied).pop(key, None)
            own, given = copied._buffers, self.part._buffers  # noqa: SLF001  (no public accessor)
            own.update({key: given[key] for key in own if key in given})
        self.known = now

    def publish(self, stage: int) -> None:
        """Let the part have what a stage's copy set."""
        if self.is_around and stage in self.copies:
            now = self._attributes(self.copies[stage])
            changed = _changes(now, self.known_of[stage])
            vars(self.part).update(changed)
            self.known.update(changed)
            self.known_of[stage] = now

    def _attributes(self, part: nn.Module) -> dict[str, Any]:
        left_out = _INTERNAL | self.stand_ins
        return {key: value for key, value in vars(part).items() if key not in left_out}

    def _held(self) -> dict[str, Any]:
        part = self.part
        return {
            **part._modules,  # noqa: SLF001  (no public accessor)
            **part._parameters,  # noqa: SLF001  (as above)
            "forward": vars(part).get("forward"),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What this rank's stages have copies of, and where they do not run what hooks the model."""

    copied: tuple[_Copied, ...] = ()
    hooked: tuple[_Hooked, ...] = ()

    def follow(self) -> None:
        """Let copies be as the model is now.

        Raises:
            WrapError: where it was changed in a way that stages do not follow.
        """
        for hooked in self.hooked:
            hooked.check()
        for each in self.copied:
            each.follow()

    def publish(self, stage: int) -> None:
        """Let the model have what a stage's copies set as they ran."""
        for each in self.copied:
            each.publish(stage)


def copies_of(
    model: nn.Module,
    modules: Mapping[int, nn.Module],
    absent: Collection[Absent],
    parts: Collection[str],
    ends: Collection[str],
) -> Copies:
    """Return what stages have copies of, of a model that nobody has changed yet.

    Args:
        model: the one that the script has.
        modules: the stages' modules.
        absent: what these lack.
        parts: names of those that run in one stage each.
        ends: names of parts whose outputs other stages read.

    Raises:
        WrapError: where such a part has a hook on its gradients.
    """
    several: dict[str, dict[int, nn.Module]] = {"": {}}
    for stage, chunk in modules.items():
        for name, copied in chunk.named_modules():
            if copied is not model.get_submodule(name):
                several.setdefault(name, {})[stage] = copied
    inside = tuple(f"{name}." for name in parts)
    keys = {owner: own for each in absent for owner, own in each.keys.items()}
    copied = tuple(
        _Copied(
            name=name,
            part=model.get_submodule(name),
            copies=copies,
            is_around=not f"{name}.".startswith(inside),
            stand_ins=frozenset(
                key for each in (model.get_submodule(name), *copies.values()) for key in keys.get(each, ())
            ),
        )
        for name, copies in several.items()
        if copies
    )
    around = [_Hooked(name="", part=model, known=_hooks_of(model))]
    if copied:
        around += [
            _Hooked(name=each.name, part=each.part, known=_hooks_of(each.part))
            for each in copied
            if each.is_around and each.name
        ]
        around += [
            _Hooked(name=name, part=model.get_submodule(name), known=dict.fromkeys(_BACKWARD, frozenset()))
            for name in ends
        ]
    found = Copies(copied=copied, hooked=tuple(around))
    found.follow()
    return found


def _changes(now: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in now.items() if value is not known.get(key, _ABSENT)}


def _names_modules(value: Any) -> bool:
    """Return whether modules or parameters are among what a value holds: copies have others."""
    left, seen = [value], set[int]()
    while left:
        each = left.pop()
        if isinstance(each, nn.Module | nn.Parameter):
            return True
        if id(each) in seen or isinstance(each, type | ModuleType | torch.Tensor):
            continue
        seen.add(id(each))
        if isinstance(each, Mapping):
            left += each.values()
        elif isinstance(each, list | tuple | set | frozenset | deque):
            left += each
        elif isinstance(each, partial):
            left += [each.func, *each.args, *each.keywords.values()]
        elif isinstance(each, MethodType):
            left.append(each.__self__)
        else:
            left += getattr(each, "__dict__", {}).values()
    return False


def _hooks_of(part: nn.Module) -> dict[str, frozenset[int]]:
    return {kind: frozenset(getattr(part, kind)) for kind in _HOOKS}
