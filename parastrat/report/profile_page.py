"""Profiles as tables and pages: what ``profiles`` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from parastrat.report.numbers import count, rate
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, Span, Tone, heading, labelled, line, rendered, wrapped

if TYPE_CHECKING:
    from parastrat.report.text import Paper

Table = Mapping[str, Any]
Summary = dict[str, Any]

_UNKNOWN = "-"
#: endings of figures' names, the longest first, with the unit in words
_UNITS = (
    ("_gbit_per_s", "Gbit/s"),
    ("_gb_per_s", "GB/s"),
    ("_gflops", "GFLOP/s"),
    ("_bytes", "bytes"),
    ("_gib", "GiB"),
    ("_mib", "MiB"),
    ("_us", "us"),
    ("_s", "s"),
    ("_w", "W"),
)
#: figures that would be called as others of the same part are
_LABELS = {
    "gb_per_s": "achieved",
    "memory_gb_per_s": "memory bandwidth",
    "host_gb_per_s": "bandwidth to the host",
}
_HEADINGS = {
    "figures": "The device",
    "peak_tflops": "Datasheet rates, dense, TFLOP/s",
    "sustained_tflops": "Rates that long matrix multiplies reach, TFLOP/s",
    "scale_up": "Inside",
    "scale_out": "Between nodes, for one device, one direction",
    "host": "Host",
    "network": "Network",
    "training": "Training, as published",
}
_LABEL = 28


def _value(table: Table, section: str, key: str) -> Any:
    """Return a figure's value; None where the profile does not state it."""
    figure = table.get(section, {}).get(key, {})
    return figure.get("value") if isinstance(figure, dict) else figure


def node_summary(table: Table) -> Summary:
    """Return what matters of a node."""
    return {
        "device": table.get("device"),
        "devices_per_node": table.get("devices_per_node"),
        "scale_up_devices": table.get("scale_up", {}).get("devices"),
        "scale_up_gb_per_s": _value(table, "scale_up", "gb_per_s"),
        "scale_out_gb_per_s": _value(table, "scale_out", "gb_per_s"),
        "network": _value(table, "network", "kind"),
    }


def device_summary(table: Table) -> Summary:
    """Return what matters of a device."""
    usable = _value(table, "figures", "usable_memory_gib")
    return {
        "type": table.get("type"),
        "usable_memory_gib": usable,
        "memory_gb_per_s": _value(table, "figures", "memory_gb_per_s"),
        "format": "bf16" if table.get("bf16_native") else "fp16",
        "peak_tflops": _matmul(table, "peak_tflops"),
        "sustained_tflops": _matmul(table, "sustained_tflops"),
    }


def _matmul(table: Table, section: str) -> Any:
    return _value(table, section, "bf16" if table.get("bf16_native") else "fp16")


def model_summary(table: Table) -> Summary:
    """Return what matters of a model."""
    architecture = table.get("architecture", {})
    kind = architecture.get("family") or next(
        (name.replace("_", "-") for name, part in table.items() if isinstance(part, dict)), None
    )
    depths = next((part["depths"] for part in table.values() if _is_part(part) and "depths" in part), ())
    training = table.get("training", {})
    encoder = architecture.get("encoder_layers", 0)
    return {
        "parameters": table.get("published_parameters"),
        "family": kind,
        "layers": architecture.get("layers", 0) + encoder or sum(depths) or None,
        "encoder_layers": encoder or None,
        "sequence_length": training.get("sequence_length") or architecture.get("max_sequence_length"),
    }


def stack_summary(table: Table) -> Summary:
    """Return what matters of a software stack."""
    keys = ("kernels", "selective_recompute", "memory_margin", "time_spread")
    return {key: table.get(key) for key in keys}


def _shown(value: Any, write: Callable[[Any], str] = str) -> str:
    return _UNKNOWN if value is None else write(value)


def _node_cells(name: str, summary: Summary) -> tuple[str, ...]:
    per_node, domain = summary["devices_per_node"], summary["scale_up_devices"]
    devices = f"{per_node} x {summary['device']}" if per_node else "processes"
    return (
        name,
        devices,
        _shown(domain),
        _shown(summary["scale_up_gb_per_s"], rate),
        _shown(summary["scale_out_gb_per_s"], rate),
        _shown(summary["network"]),
    )


def _device_cells(name: str, summary: Summary) -> tuple[str, ...]:
    return (
        name,
        _shown(summary["type"]),
        _shown(summary["usable_memory_gib"], rate),
        _shown(summary["memory_gb_per_s"], rate),
        _shown(summary["peak_tflops"], rate),
        _shown(summary["sustained_tflops"], rate),
        summary["format"] if summary["peak_tflops"] else _UNKNOWN,
    )


def _model_cells(name: str, summary: Summary) -> tuple[str, ...]:
    layers, encoder = summary["layers"], summary["encoder_layers"]
    return (
        name,
        _shown(summary["parameters"], count),
        _shown(summary["family"]),
        f"{encoder} + {layers - encoder}" if encoder else _shown(layers),
        _shown(summary["sequence_length"], count),
    )


def _stack_cells(name: str, summary: Summary) -> tuple[str, ...]:
    return (name, *(_shown(value) for value in summary.values()))


_NUMBER = Fill.NUMBER
_List: TypeAlias = tuple[
    str, Callable[[Table], Summary], Callable[[str, Summary], tuple[str, ...]], tuple[Column, ...]
]
#: by kind: its title, its summary, a row of it, and the columns
_LISTS: Mapping[str, _List] = {
    "nodes": (
        "Nodes, for --on NAME:N; GB/s of a device inside the fast domain and out of it",
        node_summary,
        _node_cells,
        (
            Column(title="name"),
            Column(title="devices"),
            Column(title="domain", fill=_NUMBER),
            Column(title="inside", fill=_NUMBER),
            Column(title="out", fill=_NUMBER),
            Column(title="network"),
        ),
    ),
    "devices": (
        "Devices, for --on NAMExM:N; TFLOP/s as on the datasheet and as sustained",
        device_summary,
        _device_cells,
        (
            Column(title="name"),
            Column(title="torch"),
            Column(title="GiB", fill=_NUMBER),
            Column(title="GB/s", fill=_NUMBER),
            Column(title="peak", fill=_NUMBER),
            Column(title="sustained", fill=_NUMBER),
            Column(title="in"),
        ),
    ),
    "models": (
        "Models, for MODEL; layers of an encoder + a decoder where there are both",
        model_summary,
        _model_cells,
        (
            Column(title="name"),
            Column(title="parameters", fill=_NUMBER),
            Column(title="family"),
            Column(title="layers", fill=_NUMBER),
            Column(title="tokens", fill=_NUMBER),
        ),
    ),
    "stacks": (
        "Stacks, for --stack",
        stack_summary,
        _stack_cells,
        (
            Column(title="name"),
            Column(title="kernels"),
            Column(title="recompute"),
            Column(title="margin", fill=_NUMBER),
            Column(title="spread", fill=_NUMBER),
        ),
    ),
}


def summary_of(kind: str, table: Table) -> Summary:
    """Return the few facts that a list shows of a profile."""
    return _LISTS[kind][1](table)


def list_text(kind: str, entries: Sequence[tuple[str, Sequence[str], Table]], paper: Paper) -> str:
    """Return the profiles of one kind, a line each, other names below.

    Args:
        kind: nodes, devices, models or stacks.
        entries: name, aliases and table of each.
        paper: the screen.
    """
    title, summarised, cells, columns = _LISTS[kind]
    rows = [Row(cells=cells(name, summarised(table))) for name, _, table in entries]
    titles, *lines = table_lines(columns, rows, paper)
    found = [line(title, Tone.HEADING), titles]
    for row, (_, aliases, _) in zip(lines, entries, strict=True):
        found.append(row)
        if aliases:
            found += wrapped(f"also {', '.join(aliases)}", paper, tone=Tone.FAINT, first="    ")
    return rendered(found, paper)


def page_text(kind: str, name: str, aliases: Sequence[str], table: Table, paper: Paper) -> str:
    """Return one profile: every figure with its kind and its source."""
    lines = [line(f"{name} ({kind.removesuffix('s')})", Tone.STRONG)]
    if aliases:
        lines += labelled("also", ", ".join(aliases), paper)
    lines += _part_lines(table, paper)
    return rendered(lines, paper)


def _part_lines(table: Table, paper: Paper, title: str = "") -> Iterator[Line]:
    """Yield the lines of a table: what it states itself, then its parts."""
    table = _with_both_depths(table)
    parts = {key: value for key, value in table.items() if _is_part(value)}
    for key, value in table.items():
        if key not in parts and not (key == "name" and not title):
            yield from _fact_lines(key, value, paper)
    for key, part in parts.items():
        below = f"{title}.{key}" if title else key
        yield from heading(_HEADINGS.get(below, below.replace("_", " ")), paper)
        yield from _part_lines(part, paper, below)


def _with_both_depths(table: Table) -> Table:
    """Return a table whose ``layers`` are the decoder's, beside an encoder's, with one line for both."""
    encoder = table.get("encoder_layers")
    if not encoder:
        return table
    both = {"layers": f"{encoder} encoder + {table['layers']} decoder"}
    return {key: both.get(key, value) for key, value in table.items() if key != "encoder_layers"}


def _is_part(value: Any) -> bool:
    return isinstance(value, dict) and "value" not in value


def _fact_lines(key: str, value: Any, paper: Paper) -> Iterator[Line]:
    figure = value if isinstance(value, dict) else {"value": value}
    label, unit = _unit(key)
    stated = _text(figure["value"])
    if key == "source" or len(stated) > paper.measure - _LABEL - 4:
        yield from labelled(label, stated, paper, width=_LABEL)
        return
    kind = figure.get("kind", "")
    tone = Tone.CAUTION if kind == "assumed" else Tone.PLAIN
    shown = f"{stated} {unit}".rstrip()
    yield (Span(f"  {label:<{_LABEL}}", Tone.FAINT), Span(f"{shown:<16}"), Span(f"  {kind}", tone))
    if "source" in figure:
        yield from wrapped(figure["source"], paper, tone=Tone.FAINT, first=" " * 6)


def _unit(key: str) -> tuple[str, str]:
    """Return a figure's name in words, and its unit."""
    for ending, unit in _UNITS:
        if f"_{key}".endswith(ending):
            return _LABELS.get(key, key.removesuffix(ending).replace("_", " ")), unit
    return key.replace("_", " "), ""


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int | float) else str(value)
