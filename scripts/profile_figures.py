# ruff: noqa: INP001 - part of a script
"""The tables and rules that ``make_profiles.py`` reads, and a figure as it writes one."""

from __future__ import annotations

import csv
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HEADER = "# Written by scripts/make_profiles.py; not by hand."

_DATA = Path(__file__).resolve().parent / "data"
_UNSOURCED = "from memory; no source was at hand"

Row = Mapping[str, str]
Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure as a profile states it."""

    value: float | str | bool
    kind: str
    source: str

    def toml(self) -> str:
        """Return the inline table."""
        value = self.value
        if isinstance(value, float):
            value = int(value) if value.is_integer() else float(f"{value:.6g}")
        shown = json.dumps(value, ensure_ascii=False)
        source = json.dumps(self.source, ensure_ascii=False)
        return f'{{ value = {shown}, kind = "{self.kind}", source = {source} }}'


Figures = dict[str, Figure]


def rows(name: str) -> list[Row]:
    """Return the rows of one of the tables."""
    with (_DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rules() -> Table:
    """Return the rules."""
    return tomllib.loads((_DATA / "rules.toml").read_text(encoding="utf-8"))


def source_of(row: Row) -> str:
    """Return what a row says of where its figures are from."""
    source = row["source"] or _UNSOURCED
    return f"{source} ({row['confidence']})" if row["confidence"] else source


def kind_of(row: Row, rule: Table, column: str, *, seen: str = "derived") -> str:
    """Return the kind of a row's figure: of what was not seen, assumed."""
    return seen if row["id"] in rule["seen"][column] else "assumed"


def section_lines(sections: Mapping[str, Figures]) -> list[str]:
    """Return the lines of a profile's tables."""
    lines: list[str] = []
    for name, figures in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {figure.toml()}" for key, figure in figures.items())]
    return lines
