"""Writes to parameters that would be lost without a word: to shards past FSDP2, and to gathered weights.

A shard is a DTensor, and what is assigned to its ``.data`` never reaches what it holds. A gathered weight
is FSDP2's own copy: what a forward writes to it, as a first batch's statistics or a bound, goes with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from parastrat.errors import WrapError
from parastrat.runtime.backward import in_backward
from parastrat.runtime.tensors.shares import memory_of, share_of
from parastrat.runtime.training.unused import at, held_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.runtime.training.unused import Place


def refuse_assigned_data(root: nn.Module) -> None:
    """Refuse a forward behind ``p.data = ...`` of a parameter that is a DTensor.

    Args:
        root: whose parameters are divided; before each forward they are those of this rank.
    """
    places = [(part, key) for part in root.modules() for key in part._parameters]  # noqa: SLF001  (as elsewhere)
    #: where shards are; what FSDP2 gathers from them is divided over fewer ranks, or over none
    meshes = [getattr(at(place), "device_mesh", None) for place in places]
    #: what each holds, and the storage that it shows; those of what is assigned are others
    known: dict[int, tuple[torch.Tensor, int]] = {}

    def before(_root: nn.Module, _args: tuple[Any, ...]) -> None:
        for number, place in enumerate(places):
            parameter = at(place)
            if not isinstance(parameter, DTensor):
                if number in known and not isinstance(_root, FSDPModule):  # which gathers
                    raise WrapError(
                        f"{name_of(place)} was divided, and is not any more: each rank would take the "
                        "whole for its share",
                        hint="load values with parastrat.load_checkpoint or set_model_state_dict of "
                        "torch.distributed.checkpoint.state_dict, not with assign=True",
                    )
                continue
            is_shard = isinstance(_root, FSDPModule) and parameter.device_mesh == meshes[number]
            if is_shard and parameter._backward_hooks:  # noqa: SLF001  (no public accessor)
                raise WrapError(
                    f"{name_of(place)} has a hook on its gradient, and FSDP2 computes that of what it "
                    "gathers: the hook would never run",
                    hint="take register_post_accumulate_grad_hook, which has this rank's part of the "
                    "reduced gradient, or change p.grad between backward and optimizer.step()",
                )
            local, shown = parameter._local_tensor, parameter.untyped_storage()._cdata  # noqa: SLF001  (as elsewhere)
            held, earlier = known.get(number, (None, 0))
            if held is local and earlier != shown:
                raise WrapError(
                    f"something was assigned to .data of {name_of(place)}, which is divided: what it holds "
                    "did not change",
                    hint="write in place, parameter.copy_(values) under torch.no_grad()",
                )
            known[number] = (local, shown)

    before(root, ())
    # before FSDP2 gathers; its own hooks are not compiled either
    root.register_forward_pre_hook(apart(before), prepend=True)


def refuse_lost_writes(root: nn.Module) -> None:
    """Refuse forwards that write to weights which FSDP2 gathered for them.

    What counts writes is looked at in each forward; the values, which tell all others, in a unit's first,
    second, fourth and so on, as they take a pass over the weights and a wait for the device.

    Args:
        root: sharded by FSDP2, or replicated by what is built on it, with all units in it.
    """
    units = [part for part in root.modules() if isinstance(part, FSDPModule)]
    for unit in units:
        # parameters without a dimension are left whole: what is written to them stays
        _Writes(unit, [place for place in held_by(unit, set(units)) if isinstance(at(place), DTensor)])


class _Writes:
    """Compares what a unit gathered before its forward and behind it."""

    def __init__(self, unit: nn.Module, places: list[Place]) -> None:
        self._places = places
        self._before: list[Look] = []
        self._forwards = 0
        unit.register_forward_pre_hook(apart(self._began))
        # before FSDP2 frees them
        unit.register_forward_hook(apart(self._ended), prepend=True)

    def _began(self, _unit: nn.Module, _args: tuple[Any, ...]) -> None:
        if (
            in_backward()
        ):  # a block around it is computed again, where each operator is held to the first time
            return
        self._forwards += 1
        for place in self._places:
            _count_writes_to_data(at(place))
        self._before = [look_at(place, values=self._looks_at_values) for place in self._places]

    @property
    def _looks_at_values(self) -> bool:
        return self._forwards.bit_count() == 1

    def _ended(self, _unit: nn.Module, _args: tuple[Any, ...], _output: Any) -> None:
        before, self._before = self._before, []
        for place, look in zip(self._places, before, strict=False):
            now = look_at(place, values=self._looks_at_values)
            # what was gathered anew meanwhile, as for a backward inside of the forward, is another tensor
            if now.of is look.of and now.told != look.told:
                raise WrapError(
                    f"a forward writes to {name_of(place)}, which FSDP2 has gathered for it: that is lost",
                    hint="write outside of the forward, to what model.parameters() has behind "
                    "optimizer.step(), or plan ddp: parastrat recommend --strategy ddp",
                )


class _Gathered(nn.Parameter):
    """A gathered weight whose writes through ``.data`` are counted as others are."""

    @property
    def data(self) -> torch.Tensor:
        """Return what shares values with it, and what counts writes, which torch's own does not."""
        return self.detach()

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        torch.Tensor.data.__set__(self, values)  # type: ignore[attr-defined]


def _count_writes_to_data(gathered: Any) -> None:
    """Let what FSDP2 gathered, and keeps to gather again, count writes through ``.data``."""
    if type(gathered) is nn.Parameter:
        gathered.__class__ = _Gathered


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Look:
    """What tells a write to a tensor."""

    of: torch.Tensor | None
    writes: int
    #: of the storage, which stays where FSDP2 frees and fills it
    address: int
    #: norm in fp32 or more, of values that may be nothing else
    norm: float | None

    @property
    def told(self) -> tuple[int, int, float | None]:
        return self.writes, self.address, self.norm


def look_at(place: Place, *, values: bool = False) -> Look:
    """Return what tells a later write to what is at a place; with ``values`` also one past autograd."""
    parameter = at(place)
    own = None if parameter is None else share_of(parameter)
    if own is None or own.is_inference() or isinstance(own, FakeTensor):
        return Look(of=None, writes=0, address=0, norm=None)
    norm = None
    if values and own.numel() and (own.is_floating_point() or own.is_complex()):
        plain = torch.view_as_real(own.detach()) if own.is_complex() else own.detach()
        of_short = torch.promote_types(plain.dtype, torch.float32)
        found = float(torch.linalg.vector_norm(plain, dtype=of_short))
        norm = None if math.isnan(found) else found
    # what is divided counts writes to it, and not what it holds
    writes = own._version + (0 if own is parameter else parameter._version)  # noqa: SLF001  (no public way)
    return Look(of=own, writes=writes, address=memory_of(own), norm=norm)


def name_of(place: Place) -> str:
    """Return what tells a place to the user: its name, and the class of its owner."""
    owner, key = place
    return f"{key} of a {type(owner).__name__.removeprefix('FSDP')}"


def apart(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that is not compiled with what it is on."""
    found: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return found
