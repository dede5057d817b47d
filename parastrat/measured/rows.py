"""Tables of measured runs, one CSV line a run, as typed rows."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from datetime import date
from typing import TYPE_CHECKING

from parastrat.errors import UsageError
from parastrat.records import field_types

if TYPE_CHECKING:
    from pathlib import Path

#: a table has an id for every run, and says what ran and on what
_REQUIRED = ("id", "model", "gpus")

#: columns of which a table of measurements has at least one
THROUGHPUT = ("step_time_s", "tokens_per_s_per_gpu", "samples_per_s")
MEASURED = (*THROUGHPUT, "peak_mem_gib")
#: columns that say nothing of what ran
NOT_SETTINGS = frozenset({"id", "line", "source", "status", "notes", *MEASURED})


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One run as its source states it; None is unknown, and what a table has beside these is not read.

    ``tokens_per_s_per_gpu`` and ``step_time_s`` are of an optimizer step; ``samples_per_s`` of all devices;
    ``peak_mem_gib`` is of the fullest device, in what ``mem_metric`` names.
    """

    id: str
    model: str
    gpus: int
    #: where the row stands in its file
    line: int = 0
    source: str | None = None
    year: int | None = None
    #: of the software that ran, YYYY-MM-DD
    date: str | None = None
    stack: str | None = None
    hardware: str | None = None
    gpu: str | None = None
    gpus_per_node: int | None = None
    # model
    layers: int | None = None
    hidden: int | None = None
    ffn_hidden: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    vocab: int | None = None
    #: "none" where nothing pads it, and each tp rank has vocab // tp rows; None: as the stack does
    vocab_padding: str | None = None
    #: "short" where the loss reads and writes logits in the products' format; None: as the stack does
    loss_format: str | None = None
    params_b: float | None = None
    moe_experts: int | None = None
    topk: int | None = None
    # workload
    seq_len: int | None = None
    global_batch: int | None = None
    precision: str | None = None
    task: str | None = None
    # plan
    tp: int | None = None
    pp: int | None = None
    vpp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    fsdp: str | None = None
    sequence_parallel: bool | None = None
    act_ckpt: str | None = None
    act_ckpt_assumed: str | None = None
    micro_batch: int | None = None
    compile: str | None = None
    async_tp: bool | None = None
    #: how rows get to experts and back: "alltoall", "deepep" or "hybridep"
    dispatcher: str | None = None
    #: whether that runs beside another micro-batch
    exchange_overlap: bool | None = None
    #: "step" where each step is one CUDA graph, "none" where none is
    cuda_graph: str | None = None
    # what came of it
    status: str | None = None
    step_time_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    samples_per_s: float | None = None
    peak_mem_gib: float | None = None
    mem_metric: str | None = None
    #: what the source says beside all that
    notes: str | None = None

    @property
    def origin(self) -> str:
        """The table that the run is of, as ids begin with its name."""
        return self.id.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Measured runs, and which columns their file has."""

    rows: tuple[MeasuredRow, ...]
    columns: tuple[str, ...]


def read_rows(path: Path) -> Table:
    """Return the runs of a CSV file.

    Raises:
        UsageError: unreadable, a column is missing, an id stands twice, or a value is none of its column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = tuple(reader.fieldnames or ())
            _check_columns(path, columns)
            rows = tuple(_row(path, reader.line_num, table) for table in reader)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint="name a CSV file") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no CSV file: {error}", hint="save it as CSV in UTF-8") from error
    _check_ids(path, rows)
    return Table(rows=rows, columns=columns)


def _check_columns(path: Path, columns: tuple[str, ...]) -> None:
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        raise UsageError(
            f"{path} has no column {' and no column '.join(missing)}",
            hint="its first line names the columns: id, model, gpus, and what was measured",
        )
    if not any(name in columns for name in MEASURED):
        raise UsageError(f"{path} has no column of a measurement", hint=f"add one of {', '.join(MEASURED)}")


def _check_ids(path: Path, rows: tuple[MeasuredRow, ...]) -> None:
    seen: dict[str, int] = {}
    for row in rows:
        if row.id in seen:
            raise UsageError(
                f"{path}:{row.line}: id {row.id!r} is that of line {seen[row.id]} too",
                hint="give every run an id of its own",
            )
        seen[row.id] = row.line


def _row(path: Path, line: int, table: dict[str | None, str | None]) -> MeasuredRow:
    kinds = field_types(MeasuredRow)
    values: dict[str, object] = {"line": line}
    for field in fields(MeasuredRow):
        text = (table.get(field.name) or "").strip()
        if field.name == "line" or not text:
            continue
        value = _value(text, str(kinds[field.name]))
        if value is None:
            raise UsageError(
                f"{path}:{line}: {field.name} {text!r} is not {_wanted(str(kinds[field.name]))}",
                hint="mend it, or leave it blank where it is unknown",
            )
        values[field.name] = value
    for name in _REQUIRED:
        if name not in values:
            raise UsageError(f"{path}:{line}: {name} is blank", hint="every run needs it")
    if not _is_day(values.get("date", "2000-01-01")):
        raise UsageError(
            f"{path}:{line}: date {values['date']!r} is no day",
            hint="write YYYY-MM-DD, or leave it blank where it is unknown",
        )
    return MeasuredRow(**values)  # type: ignore[arg-type]  # each was made for its field


def _is_day(text: object) -> bool:
    try:
        return date.fromisoformat(str(text)).isoformat() == text
    except ValueError:
        return False


def _value(text: str, kind: str) -> object | None:
    """Return a cell as what its column holds; None where it is nothing of that kind."""
    if "bool" in kind:
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if "float" not in kind and "int" not in kind:
        return text
    try:
        number = float(text)
    except ValueError:
        return None
    if "float" in kind:
        return number if 0 <= number < float("inf") else None
    return int(number) if number >= 1 and number.is_integer() else None


def _wanted(kind: str) -> str:
    if "bool" in kind:
        return "true or false"
    return "a number from 0" if "float" in kind else "a whole number from 1"
