"""The table that plan rules and estimators read: a number for one plan, an array for many."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from parastrat.errors import UnknownFactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from parastrat.case import Facts
    from parastrat.hardware import Hardware
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.units import Numbers
    from parastrat.workload import Workload


def code_of(choice: StrEnum) -> int:
    """Return a choice's position in its enumeration, as columns hold it."""
    return _positions(type(choice))[choice]


@cache
def _positions(enumeration: type[StrEnum]) -> dict[StrEnum, int]:
    # by enumeration: members of two that share a value are equal
    return {choice: position for position, choice in enumerate(enumeration)}


class Columns:
    """Read-only columns by name; reading an unknown one (None) raises ``UnknownFactError``.

    Choices stand in columns as the position of the choice in its enumeration (``code_of``).
    """

    # plan
    pp: Numbers
    dp_replicate: Numbers
    dp_shard: Numbers
    cp: Numbers
    tp: Numbers
    ep: Numbers
    #: dp_replicate x dp_shard
    dp: Numbers
    #: ranks of the plan
    world_size: Numbers
    micro_batch_size: Numbers
    gradient_accumulation_steps: Numbers
    virtual_stages: Numbers
    shard: Numbers
    reshard_after_forward: Numbers
    sequence_parallel: Numbers
    loss_parallel: Numbers
    async_tp: Numbers
    cp_method: Numbers
    recompute: Numbers
    offload: Numbers
    precision: Numbers
    compile: Numbers
    #: -1 without pipeline parallelism
    pp_schedule: Numbers
    backend: Numbers
    # workload
    global_batch_size: Numbers
    sequence_length: Numbers
    # model
    layers: Numbers
    hidden: Numbers
    heads: Numbers
    kv_heads: Numbers
    vocab: Numbers
    experts: Numbers
    max_sequence_length: Numbers
    # hardware
    devices: Numbers
    devices_per_node: Numbers
    num_nodes: Numbers
    scale_up_devices: Numbers
    scale_up_kind: Numbers
    device_type: Numbers
    bf16_native: Numbers
    has_fp8: Numbers
    # estimate
    memory_total: Numbers
    memory_margin: Numbers
    memory_capacity: Numbers

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_known", dict(known))

    def __getattr__(self, name: str) -> Any:
        value = self._known.get(name)
        if value is None:
            raise UnknownFactError(name)
        if type(value) is _Taken:
            value = self._known[name] = value.column[value.rows]
        return value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"columns are read-only: {name}")

    def joined(self, more: Mapping[str, Any]) -> Columns:
        """Return these columns with further ones."""
        return Columns({**self._known, **more})

    def at(self, rows: Any) -> Columns:
        """Return the chosen rows; plain numbers hold for every row and stay.

        Columns that nobody reads are never taken.
        """
        whole = self._known.values()
        before = {id(value.rows): value.rows for value in whole if type(value) is _Taken}
        again = {key: taken[rows] for key, taken in before.items()}

        def chosen(column: Any) -> Any:
            if type(column) is _Taken:
                return _Taken(column.column, again[id(column.rows)])
            return _Taken(column, rows) if getattr(column, "shape", ()) else column

        return Columns({name: chosen(column) for name, column in self._known.items()})

    def known(self) -> Mapping[str, Any]:
        """Return the columns by name; unknown ones are None or absent."""
        return {name: getattr(self, name) for name, value in self._known.items() if value is not None}

    def arrays(self) -> tuple[str, ...]:
        """Return the names of the columns that hold a value for each row."""
        return tuple(
            name
            for name, value in self._known.items()
            if type(value) is _Taken or getattr(value, "shape", None)
        )


class _Taken:
    """Rows of a column that are taken when it is read."""

    __slots__ = ("column", "rows")

    def __init__(self, column: Any, rows: Any) -> None:
        self.column = column
        self.rows = rows


def facts_columns(facts: Facts) -> dict[str, Any]:
    """Return the columns that do not depend on the plan; unknown facts are None."""
    return {
        **workload_columns(facts.workload),
        **model_columns(facts.model),
        **hardware_columns(facts.hardware),
    }


def workload_columns(workload: Workload) -> dict[str, Any]:
    """Return what is trained with, as columns."""
    return {
        "global_batch_size": workload.global_batch_size,
        "sequence_length": workload.sequence_length,
    }


def model_columns(model: ModelSpec) -> dict[str, Any]:
    """Return what is trained, as columns."""
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "vocab": model.vocab,
        "experts": model.experts,
        "max_sequence_length": model.max_sequence_length,
    }


def hardware_columns(hardware: Hardware) -> dict[str, Any]:
    """Return what is trained on, as columns."""
    device = hardware.device
    return {
        "devices": hardware.world_size,
        "devices_per_node": hardware.devices_per_node,
        "num_nodes": hardware.num_nodes,
        "scale_up_devices": hardware.scale_up_devices,
        "scale_up_kind": code_of(hardware.scale_up_kind),
        "device_type": code_of(device.type),
        "bf16_native": device.bf16_native,
        "has_fp8": device.peak.fp8 is not None,
    }


def plan_columns(plan: Plan) -> dict[str, Any]:
    """Return one plan's columns as plain numbers."""
    mesh = plan.mesh
    return {
        "pp": mesh.pp,
        "dp_replicate": mesh.dp_replicate,
        "dp_shard": mesh.dp_shard,
        "cp": mesh.cp,
        "tp": mesh.tp,
        "ep": mesh.ep,
        "dp": mesh.dp,
        "world_size": mesh.world_size,
        "micro_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "virtual_stages": plan.virtual_stages,
        "shard": code_of(plan.shard),
        "reshard_after_forward": plan.reshard_after_forward,
        "sequence_parallel": plan.sequence_parallel,
        "loss_parallel": plan.loss_parallel,
        "async_tp": plan.async_tp,
        "cp_method": code_of(plan.cp_method),
        "recompute": code_of(plan.recompute),
        "offload": code_of(plan.offload),
        "precision": code_of(plan.precision),
        "compile": code_of(plan.compile),
        "pp_schedule": -1 if plan.pp_schedule is None else code_of(plan.pp_schedule),
        "backend": code_of(plan.backend),
    }
