"""``copy.deepcopy`` of a divided model: a divided model of its own, as averages of weights begin with one.

The hooks and groups that divide a model cannot be copied with it. So a copy is made as the model was, of
its parts as they were before and without values, by the same decisions; then it is given the values of
this rank. No rank waits for another, and none holds more than its shares.
"""

from __future__ import annotations

import copy
import gc
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Placement

from parastrat.collection import without_collection
from parastrat.errors import WrapError
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.origin import Origin
from parastrat.runtime.placing import placed
from parastrat.runtime.starting import Start
from parastrat.runtime.tensors.shares import as_share, share_of
from parastrat.runtime.tensors.slots import left_behind, slots_of
from parastrat.runtime.training.gathered import free_for_copy
from parastrat.runtime.wrapping import Wrapping, wrapping_of

if TYPE_CHECKING:
    from parastrat.plan import Plan
    from parastrat.runtime.tensors.slots import Slot

#: what ``copy.deepcopy`` asks an object for, and knows by an object's identity
_COPY = "__deepcopy__"
_Memo = dict[int, Any]
#: those that a script holds, or that wait to be collected
_copies: WeakSet[nn.Module] = WeakSet()


def origin_of(module: nn.Module, plan: Plan) -> Origin | None:
    """Return what copies of a module will be made of; None where torch copies it as it will be."""
    divides = plan.shards_parameters or plan.mesh.tp > 1
    return Origin(module) if divides and plan.mesh.pp == 1 else None


def let_copy(model: nn.Module) -> None:
    """Let ``copy.deepcopy`` copy a wrapped model, or refuse to; nothing else is put on it afterwards."""
    wrapping = wrapping_of(model)
    if wrapping.origin is not None:
        setattr(model, _COPY, partial(_copied, model))
        wrapping.origin.is_wrapped(model)
    elif wrapping.pipeline is not None:
        setattr(model, _COPY, partial(_refuse, str(wrapping.plan.strategy)))


def _refuse(strategy: str, _memo: _Memo) -> NoReturn:
    """Refuse ``copy.deepcopy``: a copy's stages and groups would still be those of the model."""
    raise WrapError(
        f"a model under {strategy} cannot be copied: its copy would share weights and groups with it",
        hint="copy before, other = auto_parallelize(copy.deepcopy(model)) beside model = "
        "auto_parallelize(model), and average zip(other.parameters(), model.parameters()) under "
        "torch.no_grad()",
    )


@without_collection()
def _copied(model: nn.Module, memo: _Memo) -> nn.Module:
    """Return a model that is divided as this one is, with its values; what it is copied with finds them.

    Raises:
        WrapError: a forward or a backward of it runs, or it is not built as ``auto_parallelize`` left it.
    """
    wrapping = wrapping_of(model)
    if wrapping.origin is None:
        raise RuntimeError("only a model with an origin is copied so")
    free_for_copy(model)
    if _copies:
        # divided models are cycles: one that a script let go, as the best so far, keeps its memory
        gc.collect()
    values = _Values(model, memo)
    with wrapping.origin.back():
        skeleton: nn.Module = copy.deepcopy(model, memo)
    own = _wrapping_like(wrapping, skeleton)
    made = placed(skeleton, own, Start(record=None, checkpoint=None, give_memory=values.give))
    values.are_in(made)
    own.calls[:] = wrapping.calls
    if own.loss_scale is not None and wrapping.loss_scale is not None:
        own.loss_scale.load_state_dict(wrapping.loss_scale.state_dict())
    if isinstance(made, FSDPModule):
        # what a script takes of it from here on must stay: the first forward would put others in its place
        made._get_fsdp_state()._lazy_init()  # noqa: SLF001  (there is no public way)
    let_copy(made)
    _copies.add(made)
    _bring_later(model, made, wrapping.origin, memo)
    return made


def _wrapping_like(wrapping: Wrapping, module: nn.Module) -> Wrapping:
    """Return a wrapping by the same decisions, of another module that is not divided yet."""
    # as for all of its ranks, other numbers than the model draws
    seed = None if wrapping.seed is None else hash((wrapping.seed, 1)) % 2**63
    return Wrapping(
        plan=wrapping.plan,
        device=wrapping.device,
        mesh=wrapping.mesh,
        blocks=repeated_blocks(module),
        loss_fn=wrapping.loss_fn,
        layout=wrapping.layout,
        division=wrapping.division,
        experts=wrapping.experts,
        seed=seed,
        cast=wrapping.cast,
        tried=set(wrapping.tried),
        origin=Origin(module),
        copied=True,
    )


class _Values:
    """What this rank holds of a model, for its copy, which is made without.

    Args:
        model: with shards alone.
        memo: of the copy that is made; knows tensors without values for the model's until they are given.
    """

    def __init__(self, model: nn.Module, memo: _Memo) -> None:
        slots = slots_of(model)
        self._memo = memo
        self._slots = {name: slot for slot in slots for name in slot.names}
        #: copied before, by another that has them and is copied with the model, such as an optimizer
        self._known = {id(slot.tensor): memo[id(slot.tensor)] for slot in slots if id(slot.tensor) in memo}
        for tensor in left_behind(model):
            memo.setdefault(id(tensor), tensor.detach().clone())
        memo.update({id(slot.tensor): slot.standing_for(_without_values(slot.tensor)) for slot in slots})

    def give(self, module: nn.Module) -> None:
        """Let the copy, divided, hold values."""
        for slot in self._slots.values():
            self._memo.pop(id(slot.tensor), None)
        for slot in slots_of(module):
            slot.put(self._for(slot))

    def _for(self, slot: Slot) -> torch.Tensor:
        source = self._slots.get(slot.name)
        if source is None or not _is_alike(source.tensor, slot.tensor):
            raise WrapError(
                f"{slot.name} is not divided as auto_parallelize would divide it now, and the model cannot "
                "be copied",
                hint="add layers, and change which are there, before auto_parallelize; copy the model "
                "between steps",
            )
        known: torch.Tensor | None = self._known.get(id(source.tensor))
        if known is not None and _placements(known) == _placements(slot.tensor):
            return known
        if not source.is_parameter:
            return copy.deepcopy(source.tensor, self._memo)  # buffers may share memory
        own = share_of(source.tensor.detach()).clone()
        return slot.standing_for(as_share(own, slot.tensor))

    def are_in(self, made: nn.Module) -> None:
        """Let what is copied with the model find the copy's tensors.

        Raises:
            WrapError: something was copied before, which holds others.
        """
        for slot in slots_of(made):
            before = id(self._slots[slot.name].tensor)
            if self._known.get(before, slot.tensor) is not slot.tensor:
                raise WrapError(
                    f"what was copied before the model holds another {slot.name} than the model's copy",
                    hint="copy the model before optimizers of it: other, others = copy.deepcopy((model, "
                    "optimizer))",
                )
            self._memo[before] = slot.tensor


def _without_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return one of the whole's form on the meta device."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")


def _placements(tensor: torch.Tensor) -> tuple[Placement, ...]:
    return tensor.placements if isinstance(tensor, DTensor) else ()


def _is_alike(source: torch.Tensor, divided: torch.Tensor) -> bool:
    """Return whether this rank has the same of both; the second may not be replicated yet."""
    if isinstance(source, DTensor) is not isinstance(divided, DTensor) or source.shape != divided.shape:
        return False
    held, asked = _placements(source), _placements(divided)
    further = max(len(held) - len(asked), 0)
    return held[further:] == asked and all(place.is_replicate() for place in held[:further])


def _bring_later(model: nn.Module, made: nn.Module, origin: Origin, memo: _Memo) -> None:
    """Give a copy the hooks that a script put on a wrapped model, and what it set on wrappers."""
    twins = dict(made.named_modules())
    pairs = [(part, twins[name]) for name, part in model.named_modules()]
    memo.update({id(part): twin for part, twin in pairs})
    for part, twin in pairs:
        attributes, tables = origin.later(part)
        for name, value in attributes.items():
            twin.__dict__[name] = copy.deepcopy(value, memo)
        for name, hooks in tables.items():
            table, later = vars(twin)[name], []
            ahead = True
            for key, hook in hooks.items():
                if origin.is_ours(part, name, key):
                    ahead = False
                    continue
                table[key] = copy.deepcopy(hook, memo)
                later += [key] if ahead else []
            for key in reversed(later):  # they were put before all others
                table.move_to_end(key, last=False)
