"""Who reaches whom inside a host: matrices of paths, and what the paths mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.report.text import Line, Tone, line, wrapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.machine import Topology
    from parastrat.report.text import Paper

_UNKNOWN = "?"
_GAP, _INDENT, _LABEL = 2, 2, 6
#: nearest first; NVn and XGMI are explained where they occur
_MEANINGS = {
    "NVn": "n NVLinks: the fast fabric, where tensor parallelism belongs",
    "XGMI": "AMD's links between GPUs: the fast fabric, where tensor parallelism belongs",
    "PIX": "through one PCIe switch: data goes straight from one to the other",
    "PXB": "through several PCIe switches, still past the processor",
    "PHB": "through the processor's PCIe bridge: peer access may be slow or refused",
    "NODE": "through two bridges of one NUMA node",
    "SYS": "from one NUMA node to another, over the processors' link: the longest way",
    _UNKNOWN: "not told by this host",
}


def topology_lines(topology: Topology, paper: Paper) -> list[Line]:
    """Return the matrices between accelerators and to the cards, with a legend; empty without any."""
    count = len(topology.gpu_gpu)
    if not count:
        return []
    names = [f"GPU{at}" for at in range(count)]
    lines: list[Line] = []
    if count > 1:
        lines += _matrix(names, names, topology.gpu_gpu, paper)
    groups = _alike(topology)
    if groups:
        columns = [f"N{at}" for at in range(len(groups))]
        rows = [tuple(path[group[0]] for group in groups) for path in topology.gpu_card]
        lines += [line(), *_matrix(names, columns, rows, paper)]
        lines += _cards(topology, groups, columns, paper)
    return [*lines, line(), *_legend(topology, paper)]


def _alike(topology: Topology) -> list[list[int]]:
    """Return the cards in groups that all accelerators reach alike, in their order."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for at, column in enumerate(zip(*topology.gpu_card, strict=True)):
        groups.setdefault(column, []).append(at)
    return list(groups.values())


def _cards(
    topology: Topology, groups: Sequence[Sequence[int]], columns: Sequence[str], paper: Paper
) -> list[Line]:
    lines: list[Line] = [line()]
    for column, group in zip(columns, groups, strict=True):
        cards = ", ".join(topology.cards[at] for at in group)
        lines += wrapped(cards, paper, first=f"  {column:<{_LABEL}}")
    return lines


def _matrix(
    rows: Sequence[str], columns: Sequence[str], paths: Sequence[Sequence[str | None]], paper: Paper
) -> list[Line]:
    """Return a matrix, in several parts where it is wider than the paper."""
    width = max(len(text) for text in (*columns, *(path or _UNKNOWN for row in paths for path in row)))
    fitting = max(1, (paper.width - _INDENT - _LABEL) // (width + _GAP))
    lines: list[Line] = []
    for start in range(0, len(columns), fitting):
        part = slice(start, start + fitting)
        if start:
            lines.append(line())
        lines.append(line(_row("", columns[part], width), Tone.FAINT))
        lines += [
            line(_row(name, [cell or _UNKNOWN for cell in row[part]], width))
            for name, row in zip(rows, paths, strict=True)
        ]
    return lines


def _row(name: str, texts: Sequence[str], width: int) -> str:
    set_texts = (" " * _GAP).join(f"{text:<{width}}" for text in texts)
    return f"{'':{_INDENT}}{name:<{_LABEL}}{set_texts}".rstrip()


def _legend(topology: Topology, paper: Paper) -> list[Line]:
    paths = {
        path or _UNKNOWN for rows in (topology.gpu_gpu, topology.gpu_card) for row in rows for path in row
    }
    shown = {"NVn" if path.startswith("NV") else path for path in paths}
    lines: list[Line] = []
    for path, meaning in _MEANINGS.items():
        if path in shown:
            lines += wrapped(meaning, paper, first=f"  {path:<{_LABEL}}", tone=Tone.FAINT)
    return lines
