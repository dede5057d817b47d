"""First weights for a module that was built on the meta device, one block at a time.

Every rank runs the same initialisers from the same seed on whole blocks, takes rank 0's result and keeps
its own share. So the weights do not depend on the plan, and no rank holds more than its share and a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from parastrat.errors import WrapError
from parastrat.runtime.communication.agreement import shared_seed
from parastrat.runtime.communication.mesh import RankMesh
from parastrat.runtime.first_values.initialisers import reset, run_initialisers
from parastrat.runtime.first_values.operations import Write
from parastrat.runtime.first_values.replay import Record, WriteWatch
from parastrat.runtime.tensors.slots import Slot, clean_name, meta_like, slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Where first values come from, and where they are made."""

    device: torch.device
    #: names of the repeated blocks
    blocks: tuple[str, ...]
    #: what the constructor did on the meta device; None if nobody recorded it
    record: Record | None
    mesh: RankMesh
    #: of other pipeline stages: drawn with the others, in one order, and not kept
    elsewhere: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A block, or what is outside of all blocks."""

    slots: list[Slot]
    #: its modules, children before parents
    modules: list[nn.Module]
    #: those that have the block inside
    around: list[nn.Module]


def initialise(module: nn.Module, slots: Sequence[Slot], recipe: Recipe) -> None:
    """Give these meta slots their first values.

    Raises:
        WrapError: naming what neither an initialiser nor the constructor gives a value, or what is computed
            from other tensors by a parametrization.
    """
    _check_parametrized(module, slots)
    for slot in slots:  # plain meta tensors meanwhile: initialisers need not know of shards
        meta = torch.empty(slot.tensor.shape, dtype=slot.tensor.dtype, device="meta")
        slot.put(slot.standing_for(meta))
    placed: list[tuple[Slot, torch.Tensor]] = []
    missing: list[str] = []
    seed = shared_seed()
    devices = [] if recipe.device.type == "cpu" else [recipe.device]
    forked = torch.random.fork_rng(devices=devices, device_type=devices[0].type if devices else "cuda")
    with forked, _set_aside(module, slots):
        torch.manual_seed(seed)
        for group in _groups(module, slots, recipe.blocks):
            empty = [slot.current() for slot in group.slots]
            missing += _fill(module, group, recipe)
            for slot, meta in zip(group.slots, empty, strict=True):
                if slot.name in recipe.elsewhere:
                    slot.put(meta)
                    continue
                full = slot.current().detach()
                placed.append((slot, slot.placed(_from_first_rank(full, recipe.mesh))))
                slot.put(meta)
    if missing:
        raise WrapError(
            f"nothing initialises {', '.join(missing)}: memory would hold whatever was there",
            hint="give the owning module a reset_parameters() that sets it (the model an init_weights()), "
            "pass checkpoint=, or pass the built module instead of the callable",
        )
    for slot, tensor in placed:
        slot.put(tensor)


@contextmanager
def _set_aside(module: nn.Module, slots: Sequence[Slot]) -> Iterator[None]:
    """Keep from initialisers what the builder made for real: weights that it loaded are not drawn anew."""
    own = {id(slot.tensor) for slot in slots}
    real = [slot for slot in slots_of(module) if not slot.is_meta and id(slot.tensor) not in own]
    for slot in real:
        slot.put(slot.standing_for(meta_like(slot.tensor)))
    try:
        yield
    finally:
        for slot in real:
            slot.put(slot.tensor)


def _check_parametrized(module: nn.Module, slots: Sequence[Slot]) -> None:
    """Refuse weights that are computed whenever they are read: initialisers would write to what is read."""
    for name, part in module.named_modules():
        inside = f"{clean_name(name)}.parametrizations.".removeprefix(".")
        if is_parametrized(part) and any(slot.name.startswith(inside) for slot in slots):
            raise WrapError(
                f"{name or 'the model'} has parametrizations, such as of spectral_norm or weight_norm, and "
                "its first values cannot be made block by block",
                hint="pass the built module instead of the callable, or checkpoint=",
            )


def _groups(module: nn.Module, slots: Sequence[Slot], blocks: Sequence[str]) -> list[Group]:
    """Return the blocks in order, then the rest; a tied weight belongs where its first name is."""

    def home(name: str) -> str:
        return next((block for block in blocks if f"{name}.".startswith(f"{block}.")), "")

    groups = {name: Group(slots=[], modules=[], around=[]) for name in (*blocks, "")}
    for slot in slots:
        groups[home(slot.name)].slots.append(slot)
    for name, part in reversed(list(module.named_modules())):
        clean = clean_name(name)
        groups[home(clean)].modules.append(part)
        for block in blocks:
            if not clean or block.startswith(f"{clean}."):
                groups[block].around.append(part)
    return [group for group in groups.values() if group.slots]


def _fill(module: nn.Module, group: Group, recipe: Recipe) -> list[str]:
    """Put real tensors into the group's slots and run all that sets them; return who stays without."""
    for slot in group.slots:
        slot.put(slot.standing_for(_poisoned(slot.tensor, recipe.device)))
    real = {slot.name: slot.current() for slot in group.slots}
    with WriteWatch(list(real.values())) as watch, torch.no_grad():
        reset(group.modules)
        resets = {name: list(watch.writes_to(tensor)) for name, tensor in real.items()}
        run_initialisers(module, [*group.modules, *group.around], group.slots)
    missing, record = [], recipe.record
    with torch.no_grad():
        for slot in group.slots:
            same = slot.current() is real[slot.name]
            written = not same or bool(watch.writes_to(slot.current()))
            if record is not None and record.is_given(slot.name):
                _give(slot, record)
                continue
            if same and record is not None and slot.name in record.origins:
                later = watch.writes_to(slot.current())[len(resets[slot.name]) :]
                written |= _as_constructed(slot, resets[slot.name], later, record)
            if _has_values(slot.current(), written=written):
                continue
            values = record.replayed(slot.name, recipe.device, draws=True) if record is not None else None
            if values is None:
                missing.append(f"{slot.name} ({'parameter' if slot.is_parameter else 'buffer'})")
            else:
                slot.current().copy_(values)
    return missing


def _give(slot: Slot, record: Record) -> None:
    """Write what the constructor wrote of values that it had for real, as of a file.

    Raises:
        WrapError: it wrote them to what cannot be made again.
    """
    values = record.replayed(slot.name, slot.current().device, draws=True)
    if values is None:
        raise _unrepeatable(slot)
    slot.current().copy_(values)


def _as_constructed(slot: Slot, resets: list[Write], later: list[Write], record: Record) -> bool:
    """Write what the constructor wrote where initialisers did otherwise; return whether anything was.

    What it wrote beyond the modules' own resets has the last word: smaller projections, as GPT-2 has them,
    or the second factor of an adapter, which begins at zero and of which the model's initialiser knows
    nothing. Of a tied weight the constructor kept one of the tensors that resets gave values.

    Args:
        slot: with the values that initialisers gave it.
        resets: writes of ``reset_parameters``.
        later: writes of the model's initialisers.
        record: of the constructor.
    """
    recorded, done = record.writes_to(slot.name), [*resets, *later]
    if not recorded:
        # it leaves all to them; but for what is tied, and is not the one that a layer resets
        tied = not later and len(slot.owners) > 1
        values = record.replayed(slot.name, slot.current().device) if tied else None
        if values is not None:
            slot.current().copy_(values)
        return values is not None
    rest, anew = recorded[len(done) :], not done
    if recorded[: len(done)] != done:
        own = _beyond(recorded, done)
        if later and not (resets and own and own[0].overwrites(slot.current())):
            return False  # no more than a layer's own beginning, which initialisers replace
        _poison(slot.current())
        rest, anew = recorded, True
    # a write to a part keeps what the tensor was made with, of which writes say nothing
    if any(write.depends for write in rest) or (anew and not rest[0].overwrites(slot.current())):
        if not done:
            return False  # the constructor alone gave values: all of it is replayed
        values = record.replayed(slot.name, slot.current().device, draws=True)
        if values is not None:
            slot.current().copy_(values)
            return True
        raise _unrepeatable(slot)
    for write in rest:
        write.repeat(slot.current())
    return bool(rest)


def _unrepeatable(slot: Slot) -> WrapError:
    return WrapError(
        f"the constructor sets {slot.name} from other tensors, which cannot be repeated on one block",
        hint="move that into an init_weights() of the model, or pass the built module",
    )


def _beyond(writes: Sequence[Write], others: Sequence[Write]) -> list[Write]:
    """Return the writes that are not among others, each of which counts once."""
    left, found = list(others), []
    for write in writes:
        if write in left:
            left.remove(write)
        else:
            found.append(write)
    return found


def _poisoned(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of not-a-numbers; formats without them are told by their writes alone."""
    return _poison(torch.zeros(like.shape, dtype=like.dtype, device=device))


def _poison(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.fill_(torch.nan) if _can_be_nan(tensor) else tensor


def _has_values(tensor: torch.Tensor, *, written: bool) -> bool:
    if tensor.is_meta:
        return False
    return not bool(tensor.isnan().any()) if _can_be_nan(tensor) else written


def _can_be_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _from_first_rank(values: torch.Tensor, mesh: RankMesh) -> torch.Tensor:
    """Return the first rank's values; other machines may draw other random numbers from the same seed."""
    if mesh.stage_group is None:
        return values
    values = values.contiguous()
    mesh.from_first(values)
    return values
