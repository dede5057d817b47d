"""``--strategy`` and the axis flags: what they mean together, and what contradicts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from parastrat.errors import UsageError
from parastrat.plan import Mesh, Shard
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.cli.flags import FixedFlags
    from parastrat.hardware import Hardware

#: model axes in the order in which ``Plan.strategy`` names them
_MODEL_AXES = ("cp", "tp", "ep", "pp")

SINGLE = "single"


class DataStrategy(StrEnum):
    """What the data axes do."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    FSDP2 = "fsdp2"
    HSDP = "hsdp"


#: what the search never splits so by itself: it shards all or nothing
_UNUSUAL_SHARDS = {
    DataStrategy.ZERO1: Shard.OPTIMIZER,
    DataStrategy.ZERO2: Shard.GRADIENTS,
}
#: what other tools call the same
_ELSEWHERE = {
    **dict.fromkeys(("zero3", "zero-3", "fsdp1"), DataStrategy.FSDP2.value),
    "zero-1": DataStrategy.ZERO1.value,
    "zero-2": DataStrategy.ZERO2.value,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """A strategy's name, taken apart."""

    #: None: no data axis
    data: DataStrategy | None
    model_axes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name as ``Plan.strategy`` writes it."""
        return "+".join([*([self.data.value] if self.data else []), *self.model_axes]) or SINGLE


def strategy_of(fixed: FixedFlags) -> Strategy | None:
    """Return what ``--strategy`` names, checked against the axis flags; None without it.

    Raises:
        UsageError: an unknown name, or flags that contradict it.
    """
    if fixed.strategy is None:
        return None
    strategy = _parsed(fixed.strategy)
    contradiction = _contradiction(strategy, fixed)
    if contradiction:
        raise UsageError(
            f"--strategy {fixed.strategy} and {contradiction} contradict", hint="leave one of them out"
        )
    return strategy


def _parsed(text: str) -> Strategy:
    words = [word.strip() for word in text.lower().split("+")]
    if words == [SINGLE]:
        return Strategy(data=None, model_axes=())
    data = [DataStrategy(word) for word in words if word in list(DataStrategy)]
    axes = tuple(axis for axis in _MODEL_AXES if axis in words)
    if len(data) + len(axes) != len(words) or len(data) > 1:
        several = len(data) > 1 or len(set(words)) < len(words) or SINGLE in words
        meant = "" if several else _meant(words)
        raise UsageError(
            f"unknown strategy {text!r}",
            hint=(f"did you mean {meant}? " if meant else "")
            + f"{SINGLE}, or one of {', '.join(DataStrategy)} and any of {', '.join(_MODEL_AXES)}, "
            "joined with +, such as fsdp2+tp",
        )
    if not data and "cp" in axes:
        # ranks that share a sequence share the parameters too
        data = [DataStrategy.FSDP2]
    return Strategy(data=data[0] if data else None, model_axes=axes)


def _meant(words: list[str]) -> str:
    """Return the strategy that mistyped words may mean; empty where one of them is like none."""
    from parastrat.profiles import nearest

    known = (SINGLE, *DataStrategy, *_MODEL_AXES)
    words = [_ELSEWHERE.get(word, word) for word in words]
    guesses = [word if word in known else next(iter(nearest(word, known)), "") for word in words]
    return "+".join(guesses) if all(guesses) else ""


def _contradiction(strategy: Strategy, fixed: FixedFlags) -> str:
    """Return the flag that contradicts a strategy; empty when none does."""
    wanted = {axis: axis in strategy.model_axes for axis in _MODEL_AXES}
    data = strategy.data
    if data is None or data is DataStrategy.DDP:
        wanted["dp_shard"] = False
    if data is not DataStrategy.HSDP and data is not DataStrategy.DDP:
        wanted["dp_replicate"] = False
    for axis, is_wanted in wanted.items():
        degree = getattr(fixed, axis)
        if degree is not None and (degree > 1) is not is_wanted:
            return f"--{axis.replace('_', '-')} {degree}"
    return ""


def unusual_shard(fixed: FixedFlags) -> Shard | None:
    """Return what ``--strategy`` splits over ``dp_shard``, where the search would choose otherwise."""
    strategy = strategy_of(fixed)
    if strategy is None or strategy.data is None:
        return None
    if strategy.data is DataStrategy.DDP and "cp" in strategy.model_axes:
        return Shard.NONE
    return _UNUSUAL_SHARDS.get(strategy.data)


def given_mesh(fixed: FixedFlags, hardware: Hardware) -> Mesh:
    """Return the mesh over all devices that flags describe.

    Of the axes that no flag fixes, pp, cp, tp and ep are 1, and the data axes take the other ranks: as
    ``dp_shard``, with ``--strategy ddp`` as ``dp_replicate``, with ``hsdp`` sharded inside the fast domain.

    Raises:
        UsageError: the product cannot be the world size (the factors are written out), or HSDP would have
            one group.
    """
    strategy = strategy_of(fixed)
    for axis in strategy.model_axes if strategy else ():
        if getattr(fixed, axis) is None:
            raise UsageError(
                f"--strategy {fixed.strategy}: how large is {axis}?", hint=f"add --{axis} and its degree"
            )
    pp, cp, tp = fixed.pp or 1, fixed.cp or 1, fixed.tp or 1
    ranks, rest = divmod(hardware.world_size, pp * cp * tp)
    replicate, shard = (
        (fixed.dp_replicate or 1, fixed.dp_shard or 1)
        if rest
        else _data_axes(fixed, strategy, hardware, ranks)
    )
    mesh = Mesh(pp=pp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp, ep=fixed.ep or 1)
    check_world(mesh, hardware)
    if strategy is not None and strategy.data is DataStrategy.HSDP:
        _check_groups(mesh)
    return mesh


def _check_groups(mesh: Mesh) -> None:
    """Check that HSDP has several groups of several shards.

    Raises:
        UsageError: it has not.
    """
    if mesh.dp_replicate == 1 or mesh.dp_shard * mesh.cp == 1:
        other = "fsdp2" if mesh.dp_replicate == 1 else "ddp"
        raise UsageError(
            f"hsdp with dp_replicate {mesh.dp_replicate} x dp_shard {mesh.dp_shard} is {other}",
            hint="say how many ranks share the parameters, with --dp-shard",
        )


def check_world(mesh: Mesh, hardware: Hardware) -> None:
    """Check that a mesh has as many ranks as there are devices.

    Raises:
        UsageError: it has not; the message writes the factors out.
    """
    world = hardware.world_size
    if mesh.world_size == world:
        return
    several = mesh.world_size > 1
    ranks = f"{mesh}: {mesh.world_size:,} ranks" if several else "a mesh of 1 rank"
    relation = "do not divide" if world % mesh.world_size else "are not" if several else "is not"
    raise UsageError(
        f"{ranks} {relation} {counted(world, 'device')} ({hardware.name})",
        hint="change the degrees or the number of nodes; a data axis that is left out takes the rest",
    )


def check_degrees(fixed: FixedFlags, hardware: Hardware) -> None:
    """Check that the fixed axes can be part of a mesh over all devices.

    Raises:
        UsageError: their product does not divide the number of devices.
    """
    mesh = Mesh(
        pp=fixed.pp or 1,
        dp_replicate=fixed.dp_replicate or 1,
        dp_shard=fixed.dp_shard or 1,
        cp=fixed.cp or 1,
        tp=fixed.tp or 1,
    )
    if hardware.world_size % mesh.world_size:
        check_world(mesh, hardware)


def _data_axes(
    fixed: FixedFlags, strategy: Strategy | None, hardware: Hardware, ranks: int
) -> tuple[int, int]:
    """Return dp_replicate and dp_shard for the ranks that the model axes leave."""
    replicate, shard = fixed.dp_replicate, fixed.dp_shard
    data = strategy.data if strategy else None
    if strategy is not None and data is None:
        return replicate or 1, shard or 1
    if data is DataStrategy.DDP:
        return replicate or ranks, 1
    if data is DataStrategy.HSDP and replicate is None and shard is None:
        inner = (fixed.cp or 1) * (fixed.tp or 1)
        shard = _divisor_up_to(hardware.scale_up_devices // inner, ranks)
        if shard == ranks:
            shard = _divisor_up_to(hardware.devices_per_node // inner, ranks)
    if shard is None:
        shard = max(1, ranks // (replicate or 1))
    return replicate or max(1, ranks // shard), shard


def _divisor_up_to(most: int, number: int) -> int:
    """Return the largest divisor of a number that is not larger than ``most``; at least 1."""
    return next(divisor for divisor in range(max(1, min(most, number)), 0, -1) if number % divisor == 0)
