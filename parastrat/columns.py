"""The table that plan rules and estimators read: a number for one plan, an array for many."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.errors import UnknownFactError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from parastrat.units import Numbers


def code_of(choice: StrEnum) -> int:
    """Return a choice's position in its enumeration, as columns hold it."""
    return list(type(choice)).index(choice)


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
        return value

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"columns are read-only: {name}")

    def joined(self, more: Mapping[str, Any]) -> Columns:
        """Return these columns with further ones."""
        return Columns({**self._known, **more})

    def known(self) -> Mapping[str, Any]:
        """Return the columns by name; unknown ones are None or absent."""
        return self._known
