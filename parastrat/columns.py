"""The table that plan rules and estimators read: a number for one plan, an array for many."""

from __future__ import annotations

from functools import wraps
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from parastrat.errors import UnknownFactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from enum import StrEnum

    from parastrat.units import Numbers

Key = TypeVar("Key")
Made = TypeVar("Made")


def code_of(choice: StrEnum) -> int:
    """Return a choice's position in its enumeration, as columns hold it."""
    try:
        return _POSITIONS[id(choice)]
    except KeyError:
        return _position_of(choice)


#: by identity: members of two enumerations that share a value are equal, and slow to hash
_POSITIONS: dict[int, int] = {}
#: whose members these are, so that none goes and leaves its identity to another
_KNOWN: list[type[StrEnum]] = []


def _position_of(choice: StrEnum) -> int:
    """Return a choice's position, and know those of all its enumeration from now on."""
    _KNOWN.append(type(choice))
    _POSITIONS.update((id(each), position) for position, each in enumerate(type(choice)))
    return _POSITIONS[id(choice)]


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
    # search
    #: of what tells plans that go the same way through formulas of memory the mesh's part
    alike_meshes: Numbers
    #: known where only plans are wanted that ``auto_parallelize`` applies
    applied_alone: Numbers
    # workload
    global_batch_size: Numbers
    sequence_length: Numbers
    #: between the blocks: these tokens, or what else a model's samples have
    positions: Numbers
    without_tokens: Numbers
    optimizer: Numbers
    # model
    layers: Numbers
    hidden: Numbers
    heads: Numbers
    kv_heads: Numbers
    stacks: Numbers
    divisible: Numbers
    vocab: Numbers
    experts: Numbers
    max_sequence_length: Numbers
    scan_heads: Numbers
    scan_groups: Numbers
    whole_scans: Numbers
    #: heads of keys, where whole experts are given a rank's stretch of the sequence if tp divides these
    token_heads: Numbers
    without_heads: Numbers
    without_experts: Numbers
    #: the first block and the last share a weight
    ties_ends: Numbers
    #: a block between the ends shares a weight of one of these
    ties_inside: Numbers
    # hardware
    devices: Numbers
    devices_per_node: Numbers
    num_nodes: Numbers
    scale_up_devices: Numbers
    scale_up_kind: Numbers
    device_type: Numbers
    bf16_native: Numbers
    has_fp8: Numbers
    # stack
    divides_experts: Numbers
    pads_vocabulary: Numbers
    splits_backward: Numbers
    dtensors: Numbers
    # estimate
    memory_total: Numbers
    memory_margin: Numbers
    memory_capacity: Numbers
    #: bytes that processes and what is offloaded take of each host, and that it has
    host_needed: Numbers
    host_capacity: Numbers

    #: tables of columns, each with the rows of it that are meant (None: all); the first that has a name
    #: counts. What was read is an attribute, so that it is found without a call when it is read again
    _tables: list[tuple[Mapping[str, Any], Any]]
    #: what ``derived`` functions returned
    _derived: dict[Any, Any]

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.__dict__.update(_tables=[(known, None)], _derived={})

    def __getattr__(self, name: str) -> Any:
        for table, rows in self._tables:
            value = table.get(name)
            if value is not None:
                if rows is not None and getattr(value, "shape", None):
                    value = value[rows]
                self.__dict__[name] = value
                return value
        raise UnknownFactError(name)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"columns are read-only: {name}")

    def joined(self, more: Mapping[str, Any]) -> Columns:
        """Return these columns with further ones, before those of the same name; None says nothing."""
        more = {name: value for name, value in more.items() if value is not None}
        (table, rows), *others = self._tables
        own = [({**table, **more}, None), *others] if rows is None else [(more, None), *self._tables]
        columns = Columns.__new__(Columns)
        columns.__dict__.update(self.__dict__)
        columns.__dict__.update(more, _tables=own, _derived={})
        return columns

    def at(self, rows: Any) -> Columns:
        """Return the chosen rows; plain numbers hold for every row and stay.

        Columns that nobody reads are never taken.
        """
        columns = Columns.__new__(Columns)
        tables = [(table, rows if own is None else own[rows]) for table, own in self._tables]
        columns.__dict__.update(_tables=tables, _derived={})
        return columns

    def of_row(self, row: int, names: Iterable[str]) -> Iterator[Any]:
        """Yield what named columns hold of one row, as plain numbers: none of them is taken for it.

        Raises:
            UnknownFactError: one of them is unknown.
        """
        tables = [(table, row if own is None else own[row]) for table, own in self._tables]
        for name in names:
            for table, place in tables:
                value = table.get(name)
                if value is not None:
                    yield value.item(place) if getattr(value, "shape", ()) else value
                    break
            else:
                raise UnknownFactError(name)

    def parts(self, order: Any, ends: Sequence[int], names: Iterable[str]) -> Iterator[tuple[Any, Columns]]:
        """Yield parts of the rows in an order, each with which rows these are.

        Args:
            order: the rows.
            ends: where each part ends in it, the last one at its end.
            names: columns that are taken once, of which parts have no copies.
        """
        read = {name: getattr(self, name) for name in names if self.has(name)}
        arrays = {name: value.take(order) for name, value in read.items() if getattr(value, "shape", ())}
        every = self.at(order)
        for begin, end in pairwise([0, *ends]):
            own = slice(begin, end)
            yield order[own], every.at(own).joined({name: value[own] for name, value in arrays.items()})

    def has(self, name: str) -> bool:
        """Return whether a column is known."""
        if name in self.__dict__:
            return True
        # ``any`` of a generator takes three times as long
        for table, _ in self._tables:  # noqa: SIM110
            if table.get(name) is not None:
                return True
        return False

    def was_read(self, name: str) -> bool:
        """Return whether a column was read, of rows that were taken with ``at``."""
        return name in self.__dict__

    def known(self) -> Mapping[str, Any]:
        """Return the columns by name; unknown ones are absent."""
        return {name: getattr(self, name) for name in self._named()}

    def numbers(self) -> Mapping[str, Any]:
        """Return the columns that hold one value for all rows, by name."""
        return {name: value for name, value in self._named().items() if not getattr(value, "shape", ())}

    def arrays(self) -> tuple[str, ...]:
        """Return the names of the columns that hold a value for each row."""
        return tuple(name for name, value in self._named().items() if getattr(value, "shape", ()))

    def _named(self) -> dict[str, Any]:
        """Return each column that is known, with all rows of its table."""
        named: dict[str, Any] = {}
        for table, _ in reversed(self._tables):
            named.update((name, value) for name, value in table.items() if value is not None)
        return named


class Row:
    """One plan's columns as plain numbers, as formulas read ``Columns``.

    Without ``__getattr__``, with which each reading takes five times as long.
    """

    def __init__(self, known: Mapping[str, Any]) -> None:
        self.__dict__.update(known)

    def has(self, name: str) -> bool:
        """Return whether a column is known."""
        return name in self.__dict__


def ends_of(groups: Sequence[int], most: float) -> list[int]:
    """Return where parts end of groups that stand behind each other: none has more rows than the most."""
    ends, begin = list[int](), 0
    for many in groups:
        parts = ceil(many / most)
        ends += [begin + many * part // parts for part in range(1, parts + 1)]
        begin += many
    return ends


def derived(make: Callable[[Columns], Made]) -> Callable[[Columns], Made]:
    """Let a function that hangs on columns alone return what it made of the same ones before."""

    @wraps(make)
    def found(columns: Columns) -> Made:
        known = columns._derived  # noqa: SLF001 - of this module
        if make not in known:
            known[make] = make(columns)
        made: Made = known[make]
        return made

    return found


def derived_with(make: Callable[[Key, Columns], Made]) -> Callable[[Key, Columns], Made]:
    """Let a function of a value and columns return what it made of that very value and the same columns.

    The value is told by identity, and kept as long as the columns, so that no other can have it.
    """

    @wraps(make)
    def found(value: Key, columns: Columns) -> Made:
        known, key = columns._derived, (make, id(value))  # noqa: SLF001 - of this module
        if key not in known:
            known[key] = value, make(value, columns)
        made: Made = known[key][1]
        return made

    return found
